"""`dsrun train`: check what can be checked, start the workers, pass their exit code on."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsrun.cli.words import aside, complain, heard_or_not, remark
from dsrun.errors import EXIT_RESUME, EXIT_TOOL_FAILED

if TYPE_CHECKING:
    from dsrun.launch.job import Job, Outcome, Topology
    from dsrun.launch.signals import StartupSignals
    from dsrun.recipe.resolve import Recipe
    from dsrun.runs.folder import RunFolder

WORKER = "dsrun.train"


class TrainCommand(click.Command):
    """Leaves all flags to the recipe's own parser, which knows those of transformers too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if any(arg in ("-h", "--help") for arg in args):
            from dsrun.recipe.reference import help_text

            click.echo(f"Usage: {ctx.command_path} [FLAGS]\n\n  {self.get_short_help_str(200)}\n")
            click.echo(help_text(shutil.get_terminal_size().columns))
            ctx.exit()
        ctx.obj = list(args)
        return []


@click.command(cls=TrainCommand, name="train")
@click.pass_obj
def command(args: list[str]) -> int:
    """Train a seq2seq or causal LM under DeepSpeed ZeRO."""
    from dsrun.launch.coordinator.messages import Stopped
    from dsrun.launch.signals import startup_signals
    from dsrun.system.env import worker_from_env
    from dsrun.system.packages import require_training_packages

    if worker_from_env(os.environ) is not None:
        require_training_packages()
        os.execv(sys.executable, [sys.executable, "-m", WORKER, *args])
    try:
        with startup_signals() as early:
            recipe = checked_recipe(args)
            if recipe.spec.explain:
                show_values(recipe)
                return 0
            return _launch(recipe, args, early)
    except Stopped as stopped:
        remark(str(stopped))
        return stopped.exit_code


def _launch(recipe: Recipe, args: list[str], early: StartupSignals) -> int:
    from dsrun.launch.command import run_arguments, run_command
    from dsrun.launch.coordinator.messages import SingleNodeCoordinator
    from dsrun.launch.environment import has_libuv, launch_environment
    from dsrun.launch.supervisor.run import supervise
    from dsrun.runs.folder import RunFolder, refuse_unfit
    from dsrun.system.net import free_port
    from dsrun.system.packages import require_training_packages

    topology = topology_of(recipe)
    folder = RunFolder(Path(recipe.spec.output or default_output(recipe)))
    refuse_unfit(folder.path, force=recipe.spec.force)
    changes = launch_environment(
        topology, os.environ, run=folder.path, external=False, debug=recipe.spec.debug, libuv=has_libuv()
    )
    env = {name: value for name, value in {**os.environ, **changes}.items() if value is not None}
    named = bool(recipe.spec.output)
    job = training_job(
        recipe, args, topology=topology, run=folder.path, env=env, port=_port(recipe), named=named
    )
    if recipe.spec.dry_run:
        show(run_command(run_arguments(job, attempt=0, port=job.port or free_port())), changes)
        return 0
    require_training_packages()
    RunFolder.create(folder.path, force=recipe.spec.force)
    coordinator = SingleNodeCoordinator()
    early.tell(coordinator)
    outcome = supervise(job, coordinator, teller(folder))
    early.is_over = True
    account(folder)
    return report(outcome, folder)


def checked_recipe(args: list[str]) -> Recipe:
    """What the flags mean, with all that can be seen to be wrong before a worker starts raised as UsageError."""
    from dsrun.recipe.files import check_files
    from dsrun.recipe.resolve import resolve
    from dsrun.recipe.trackers import check_packages

    recipe = resolve(args, Path.cwd())
    if not recipe.spec.explain:
        for notice in recipe.notices:
            remark(notice)
        check_files(recipe.spec, generation_config=recipe.hf.get("generation_config"))
        check_packages(recipe)
    return recipe


def topology_of(recipe: Recipe, *, nproc: int | None = None) -> Topology:
    """The workers of this machine; `nproc` comes before the recipe's."""
    from dsrun.launch.job import decide
    from dsrun.system.gpus import gpu_count
    from dsrun.system.host import cores

    return decide(
        nproc=nproc or recipe.spec.nproc,
        visible_gpus=gpu_count(),
        cores=cores(),
        use_cpu=bool(recipe.hf.get("use_cpu")),
    )


def training_job(
    recipe: Recipe,
    args: list[str],
    *,
    topology: Topology,
    run: Path,
    env: Mapping[str, str],
    nnodes: int = 1,
    named: bool,
    **more: Any,
) -> Job:
    """The job of dsrun's own workers, after `recipe`; `more` are fields of Job, and come before the recipe. `named`:
    the same command would have the same run folder.

    Raises UsageError where the batch does not divide among the workers of all nodes.
    """
    from dsrun.launch.job import Job
    from dsrun.launch.supervisor.policy import Limits
    from dsrun.recipe.batch import batch_plan
    from dsrun.recipe.defaults import RESUME_AUTO

    spec = recipe.spec
    batch = batch_plan(
        global_batch_size=spec.global_batch_size,
        micro_batch_size=spec.micro_batch_size or recipe.hf.get("per_device_train_batch_size"),
        accumulation=recipe.hf.get("gradient_accumulation_steps"),
        world_size=nnodes * topology.workers,
        default_micro=8,
    )
    fields: dict[str, Any] = {
        "program": ["--module", WORKER, *(word for word in args if word.replace("_", "-") != "--dry-run")],
        "limits": Limits(max_restarts=spec.max_restarts, remedy=spec.remedy),
        "hang_timeout": spec.hang_timeout,
        "warm": spec.warm,
        "terminal_width": shutil.get_terminal_size().columns if sys.stderr.isatty() else None,
        "echo": spec.debug,
        "micro_batch": batch.micro_batch,
        "accumulation": batch.accumulation,
        "imports": late_imports(recipe),
        "again": "the same command" + ("" if named else f" with --output {shlex.quote(str(run))}"),
        # The path of a checkpoint, or never.
        "resumes": spec.resume in RESUME_AUTO,
    }
    return Job(topology=topology, run=run, env=env, nnodes=nnodes, **{**fields, **more})


def late_imports(recipe: Recipe) -> list[str]:
    """What a worker of this recipe loads only when it needs it."""
    spec = recipe.spec
    # original_muon loads torch's compiler, whatever the optimizer: a second and a half.
    names = (
        ["deepspeed.runtime.engine", "deepspeed.runtime.zero.muon.original_muon"] if spec.zero != "0" else []
    )
    kind = spec.model_type or _model_type(spec.model)
    return [*names, f"transformers.models.{kind}.modeling_{kind}"] if kind else names


def _model_type(model: str | None) -> str | None:
    """As the config.json of a local model says."""
    with suppress(OSError, ValueError, AttributeError):
        found = json.loads(Path(model or "", "config.json").read_text()).get("model_type")
        return str(found).replace("-", "_") if found else None
    return None


def account(folder: RunFolder) -> None:
    """Say where the time of the run went, all its attempts and earlier starts together."""
    from dsrun.runs.goodput import goodput, words
    from dsrun.runs.records import iter_records

    ledger = goodput(iter_records(folder.events))
    if ledger.productive:
        line = f"  {words(ledger)}"
        aside(line)
        _keep(line, folder)


def teller(folder: RunFolder) -> Callable[[str], None]:
    """Tells the user what the supervisor does, and console.log with him."""

    def tell(line: str) -> None:
        remark(line)
        _keep(f"note: {line}", folder)

    return tell


def _keep(line: str, folder: RunFolder) -> None:
    with suppress(OSError), folder.console.open("a", encoding="utf-8") as log:
        log.write(line + "\n")


def report(outcome: Outcome, folder: RunFolder, *, external: bool = False) -> int:
    """Say how the run ended; returns the exit code."""
    if outcome.exit_code == 0:
        with heard_or_not(1):
            click.echo(folder.model if folder.model.is_dir() and not external else folder.path)
    elif outcome.exit_code == EXIT_RESUME and outcome.message:
        remark(outcome.message)
    elif outcome.message:
        complain(outcome.message)
        if outcome.advice:
            aside(f"       {outcome.advice}")
        if outcome.log and outcome.exit_code == EXIT_TOOL_FAILED:
            aside(f"       the whole story is in {outcome.log}")
    return outcome.exit_code


def _port(recipe: Recipe) -> int | None:
    """The port that the user wants; None for a free one, found for every attempt anew."""
    from dsrun.system.net import claim_port

    if recipe.spec.master_port is None:
        return None
    return claim_port(recipe.spec.master_port, find=recipe.spec.find_port)


def default_output(recipe: Recipe) -> str:
    """The run folder where --output was not given."""
    from dsrun.runs.folder import default_name

    return default_name(recipe.spec.model or recipe.spec.model_type or "model", datetime.now())


def show_values(recipe: Recipe) -> None:
    """--explain: every value with where it comes from."""
    from dsrun.recipe.resolve import explain

    rows = [(name, repr(value), source) for name, value, source in explain(recipe)]
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    for name, value, source in rows:
        click.echo(f"{name.ljust(widths[0])}  {value.ljust(widths[1])}  {source}")


def show(argv: Sequence[str], changes: Mapping[str, str | None]) -> None:
    """--dry-run: what would be set, and the command that would be run."""
    for name, value in sorted(changes.items()):
        click.echo(f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}")
    click.echo(shlex.join(argv))
