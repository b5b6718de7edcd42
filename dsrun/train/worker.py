"""One worker from its first line to its exit code: streams first, then the heavy imports, then the run."""

import itertools
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from importlib import import_module
from pathlib import Path

from dsrun.errors import DsrunError, UsageError
from dsrun.hub.modelscope import fetch
from dsrun.hub.push import HubRepository, check_push, final_folder
from dsrun.recipe.recipe import Recipe, phases
from dsrun.recipe.resolved import recipe_in_force, worker_recipe, write_stored
from dsrun.recipe.trackers import environment
from dsrun.runs.attempts import earlier_signatures, is_another
from dsrun.runs.folder import MANY_RANKS, RunFolder, default_name
from dsrun.runs.heartbeat import HeartbeatWriter, StopRequest
from dsrun.system import variables
from dsrun.system.env import WorkerPlace, worker_from_env
from dsrun.system.imports import without_collections
from dsrun.system.net import reachable
from dsrun.system.process.process_end import die_with_parent
from dsrun.system.terminal.display import terminal_width
from dsrun.system.terminal.stderr import is_json
from dsrun.train.base import rank_context
from dsrun.train.base.console import ERROR_STYLE, Console, open_console, send_output_to
from dsrun.zero.lint.config_check import refuse_errors


def keep_temporary_files_with_run(environ: Mapping[str, str]) -> None:
    """Have multiprocessing keep its sockets in the supervisor's folder: its pymp-* in TMPDIR outlives a killed rank."""
    folder = environ.get(variables.FAILURES)
    if folder is None:
        return
    for name in ("multiprocessing", "multiprocess"):  # the latter is what datasets uses
        # What util.get_temp_dir looks at first; there is no public name for it.
        with suppress(ImportError, AttributeError, OSError):
            process = import_module(f"{name}.process").current_process()
            process._config["tempdir"] = tempfile.mkdtemp(prefix="pymp-", dir=Path(folder).parent)


def main(argv: Sequence[str]) -> int:
    # First: until `stopping.install`, SIGTERM's default would end the process without its finally blocks.
    # It ends through them, so that nothing is left half written.
    signal.signal(signal.SIGTERM, lambda signum, _frame: sys.exit(128 + signum))
    rank_context.show_stacks_in(None)
    # torchrun killed outright would leave its ranks training on. Not SIGTERM, which may mean: save and leave.
    die_with_parent(os.getppid(), signal.SIGKILL)
    try:
        stopping = rank_context.handler_from_env(os.environ)
        worker = worker_from_env(os.environ)
        if worker is None:
            raise UsageError("python -m dsrun.train is a worker", fix="start it with `dsrun train`")
    except UsageError as error:
        # Which process is rank 0 is not known, so every one prints it.
        console_of(0).print(f"error: {error}", style=ERROR_STYLE)
        return error.exit_code
    rank = worker.rank
    keep_temporary_files_with_run(os.environ)
    context = rank_context.RankContext(HeartbeatWriter.from_environment(os.environ, rank, answers=True), stopping)
    console = console_of(rank)
    log: Path | None = None
    debug = any(arg in ("--debug", "--debug=true") for arg in argv)  # also if the flags cannot be resolved
    try:
        stopping.install(rank)
        os.environ.update(worker.variables())
        lint = partial(refuse_errors, notify=console.notice)
        requested = worker_recipe(argv, os.environ, world_size=worker.world_size, lint=lint)
        debug = console.debug = requested.spec.debug
        recipe, folder = take_folder(requested, rank, console)
        log = next_log(folder, worker)
        send_output_to(log, echo=recipe.spec.debug)
        rank_context.show_stacks_in(log)
        with console.status("loading torch, transformers and DeepSpeed"):
            _run(recipe, folder, console, rank, context)
    except BaseException as error:
        code = conclude(error, rank, console, context, log=log)
        if debug and code:
            raise
        return code
    return 0


def take_folder(requested: Recipe, rank: int, console: Console) -> tuple[Recipe, RunFolder]:
    """The recipe to train by, and its run folder, which rank 0 creates, locks and clears as --resume says."""
    folder = RunFolder(Path(output_folder(requested)))
    requested, notice = recipe_in_force(requested, folder, os.environ)
    recipe = _resumed_if_restarted(requested)
    if rank == 0:
        folder = RunFolder.create(folder.path, force=recipe.spec.force)
        folder.acquire()
        aside = _set_aside_earlier_run(requested, folder)
        if aside:
            console.notice(f"the results of an earlier run moved to {aside}")
        if notice and not rank_context.is_supervised(os.environ):
            console.notice(notice)
        if recipe.spec.notify and not rank_context.is_supervised(os.environ):
            console.notice("--notify: dsrun's supervisor sends the messages, and there is none: use `dsrun launch`")
        if not (is_another(os.environ) and folder.recipe.exists()):
            write_stored(requested, folder, os.environ)
    return recipe, folder


def conclude(
    error: BaseException, rank: int, console: Console, context: rank_context.RankContext, *, log: Path | None
) -> int:
    """Record and print the error that ends this worker; its exit code, 0 where it was asked to stop before it began."""
    stopping = context.stopping
    # A rank whose peers have left fails in the exchange that it waits in.
    if stopping.stopped_before_training and not isinstance(error, DsrunError):
        console.notice(f"stopped by {stopping.request or StopRequest()} before training began")
        rank_context.record_interruption()
        return 0
    code, message = rank_context.record_failure(error, rank=rank, log=log, progress=context.progress)
    if variables.CONSOLE not in os.environ:
        console.print(f"error: {message}", style=ERROR_STYLE)
    return code


def _resumed_if_restarted(recipe: Recipe) -> Recipe:
    """`--resume never` was about the first start, not about one put back into the queue or started again."""
    if recipe.spec.resume != "never" or not is_another(os.environ):
        return recipe
    return replace(recipe, spec=replace(recipe.spec, resume="auto"))


def _set_aside_earlier_run(requested: Recipe, folder: RunFolder) -> Path | None:
    """What `--resume never` does to an earlier run in the folder; later, where an attempt died before it was done."""
    if requested.spec.resume != "never" or "train" not in phases(requested):
        return None
    from dsrun.train.checkpoint.resume import holds_another_run, set_earlier_run_aside
    from dsrun.train.decide_plan import clear_fallbacks

    if not is_another(os.environ):
        clear_fallbacks(folder.path)
        return set_earlier_run_aside(folder, datetime.now(), discard=requested.spec.force)
    if not holds_another_run(folder, earlier_signatures(os.environ)):
        return None
    # Never deleted here: an unsigned checkpoint, or one of a rank 0 that torchrun has moved, may be this run's own.
    return set_earlier_run_aside(folder, datetime.now(), discard=False)


def _run(recipe: Recipe, folder: RunFolder, console: Console, rank: int, context: rank_context.RankContext) -> None:
    if rank == 0:
        open_records(recipe, folder, console)
    with without_collections():
        from dsrun.train.base.distributed import destroy_process_group, world_from_env
        from dsrun.train.decide_plan import with_demo
        from dsrun.train.run import prepare_run, run

    hf = recipe.hf
    world = world_from_env(use_cpu=bool(hf.get("use_cpu")), ddp_timeout=hf.get("ddp_timeout"))
    if rank == 0 and not rank_context.is_supervised(os.environ):
        check_push(recipe, folder.path, os.environ)
    context.heart.enter("loading")
    fetch(recipe.spec, notify=console.notice, beat=context.heart.beat, local_rank=int(os.environ["LOCAL_RANK"]))
    recipe, title = with_demo(recipe, notify=console.notice)
    run(prepare_run(recipe, title, world, folder, console, context=context))
    destroy_process_group()
    # Not before the other ranks are free to leave: an upload may take longer than a collective may wait.
    repository = HubRepository.wanted(recipe, folder.path)
    if rank == 0 and repository is not None and folder.finished.is_file():
        console.print(f"pushing the model to {repository.name}")
        address = repository.push(final_folder(recipe, folder), beat=context.heart.beat)
        console.rows([("pushed", address)])


def open_records(recipe: Recipe, folder: RunFolder, console: Console) -> None:
    """Keep what the console shows in the run folder, and set the variables of the trackers; on rank 0."""
    console.record_in(folder.console)
    variables, notice = environment(recipe, folder.path, os.environ, reachable=reachable)
    os.environ.update(variables)
    if notice:
        console.notice(notice)


def output_folder(recipe: Recipe) -> str:
    """The run folder: as given, as the launcher chose it, else named after the job so that all ranks agree."""
    chosen = recipe.spec.output or os.environ.get(variables.OUTPUT)
    if chosen:
        return chosen
    job = os.environ.get("SLURM_JOB_ID") or os.environ.get("TORCHELASTIC_RUN_ID")
    model = recipe.spec.model or recipe.spec.model_type or "model"
    if job and job != "none":
        return str(Path("runs") / f"{Path(model).name}-{job}")
    if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) == int(os.environ["WORLD_SIZE"]):
        import psutil

        # All workers of one machine have the same parent, started at one moment.
        return default_name(model, datetime.fromtimestamp(psutil.Process(os.getppid()).create_time()))
    raise UsageError("on several nodes every rank must know the run folder", fix="add --output DIR")


def console_of(rank: int) -> Console:
    if rank != 0:
        return Console(None)
    channel = os.environ.get(variables.CONSOLE)
    width = int(os.environ.get(variables.TERMINAL, "0")) or None if channel else terminal_width(sys.stderr)
    return Console(open_console(channel), width=width, as_json=is_json())


def next_log(folder: RunFolder, worker: WorkerPlace) -> Path:
    """The log of this rank's attempt: no attempt writes into an earlier one's."""
    node = worker.rank // worker.local_world_size if worker.world_size > MANY_RANKS else None
    attempts = (folder.log(worker.rank, attempt, node=node) for attempt in itertools.count())
    log = next(log for log in attempts if not log.exists())
    log.parent.mkdir(parents=True, exist_ok=True)
    return log
