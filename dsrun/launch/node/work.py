"""What one machine of a run does: train by its checked recipe, or run the program of a `dsrun launch` line."""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dsrun.demo.models import DEFAULTS, settings_on
from dsrun.errors import MissingError, UsageError
from dsrun.launch.context import LaunchRequest, LocalWorkers, TrainingJob, decide
from dsrun.launch.expected_gpus import check_driver, check_program
from dsrun.launch.launcher_line import LauncherLine, refuse_other
from dsrun.launch.node.checked_recipe import checked_recipe, with_deepspeed_checked
from dsrun.launch.program import WORKER, JobProgram, any_program, train_program
from dsrun.launch.supervisor.policy import RestartLimits
from dsrun.machine.gpus import visible_gpus
from dsrun.models.families import model_type_of
from dsrun.recipe.batch import BATCH_FLAGS
from dsrun.recipe.deepspeed_file import group_timeout_s
from dsrun.recipe.preflight.elastic import NodeRange, batches_by_nodes, node_range, with_range
from dsrun.recipe.recipe import Recipe
from dsrun.recipe.resolve import with_defaults
from dsrun.recipe.resolved import to_json
from dsrun.runs.folder import default_name
from dsrun.system import variables
from dsrun.system.host import cores, require_training_packages
from dsrun.system.shell import command_line
from dsrun.system.terminal.secrets import without_tokens
from dsrun.system.terminal.stderr import print_note


@dataclass(frozen=True, kw_only=True)
class LaunchOptions(LaunchRequest):
    """The command line up to the program. `dsrun train` runs with the defaults."""

    include: str | None = None
    exclude: str | None = None
    nproc: int | None = None
    output: str | None = None
    max_restarts: int | None = None
    hang_timeout: float | None = None
    remedy: bool = True
    warm: bool = True
    signals: bool = True
    rendezvous_timeout: float = 600
    force: bool = False
    dry_run: bool = False
    debug: bool = False
    notify: tuple[str, ...] = ()
    log_format: str | None = None
    elastic: str | None = None
    tied: bool = False

    def argv(self, *names: str, defaults: bool = True) -> list[str]:
        """The options `names`, and those that every node's supervisor needs, as command-line arguments; those that have
        their default only with `defaults`."""
        names = (*names, "output", "max_restarts", "hang_timeout", "elastic", "rendezvous_timeout", "force", "debug")
        found = [word for target in self.notify for word in ("--notify", target)]
        for name in names:
            value = getattr(self, name)
            flag = f"--{name.replace('_', '-')}"
            if value is True:
                found.append(flag)
            elif value is not None and value is not False and (defaults or value != getattr(LaunchOptions, name)):
                found += [flag, f"{value}"]
        return found + [f"--no-{name}" for name in ("remedy", "warm", "signals") if not getattr(self, name)]


@dataclass(frozen=True, kw_only=True)
class NodeProgram:
    """What runs on this machine.

    `output` is its run folder; `require` raises MissingError for what it needs and this machine lacks; `job` makes the
    TrainingJob from the fields that depend on the place. `recipe` is that of dsrun's own training, None for an external
    program; `job` takes it as a field too. `find_port` is passed to `claim_port` for a named port on one machine.
    `name` is that of the model or program in messages, which go to the targets `notify`. `env` are the variables that
    another launcher's line has set, for --dry-run. With `elastic` it goes on with fewer machines."""

    topology: LocalWorkers
    output: str
    debug: bool
    dry_run: bool
    force: bool
    require: Callable[[], None]
    job: Callable[..., TrainingJob]
    recipe: Recipe | None = None
    find_port: bool | None = None
    name: str = ""
    notify: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    elastic: NodeRange | None = None


def local_topology(nproc: int | None, *, use_cpu: bool) -> LocalWorkers:
    """The workers of this machine: `nproc`, else one per visible GPU."""
    visible = visible_gpus()
    if not use_cpu:
        check_driver(len(visible), os.environ)
    found = decide(nproc=nproc, visible_gpus=len(visible), cores=cores(), use_cpu=use_cpu)
    used = visible[: found.workers] if found.device == "cuda" else []
    return replace(found, gpus=tuple(each.name for each in used))


def training_work(recipe: Recipe, options: LaunchOptions, *, nodes: int = 1) -> NodeProgram:
    """dsrun's own training on `nodes` machines like this one. `options` take precedence over the recipe; their `output`
    is the run folder, if named. Raises UsageError for a --deepspeed file that does not work."""
    spec = recipe.spec
    group_timeout_s(recipe.hf.get("ddp_timeout"), os.environ)
    topology = local_topology(options.nproc or spec.nproc, use_cpu=bool(recipe.hf.get("use_cpu")))
    recipe = with_deepspeed_checked(recipe, nodes * topology.workers)
    elastic = node_range(options.elastic, spec.elastic, nodes)
    recipe = with_range(recipe, elastic)
    # A demo's batch follows from the number of ranks: here from that of all nodes.
    if elastic and spec.model in DEFAULTS:
        ranks, sizes = nodes * topology.workers, any(map(recipe.given, BATCH_FLAGS))
        values = settings_on(spec.model, ranks, sizes=sizes, auto=spec.auto_micro_batch)
        recipe = with_defaults(recipe, values, spec.model)
    batches_by_nodes(recipe, elastic, nodes, topology.workers)  # refused here, before anything starts
    return NodeProgram(
        topology=topology,
        output=options.output or default_name(spec.model or spec.model_type or "model", datetime.now()),
        debug=options.debug or spec.debug,
        dry_run=options.dry_run or spec.dry_run,
        force=options.force or spec.force,
        require=require_training_packages,
        job=partial(training_job, options, topology),
        recipe=recipe,
        name=spec.model or spec.model_type or "the model",
        notify=(*options.notify, *spec.notify),
        elastic=elastic,
    )


def training_job(
    options: LaunchOptions,
    topology: LocalWorkers,
    *,
    recipe: Recipe,
    run: Path,
    env: Mapping[str, str],
    nnodes: int = 1,
    elastic: NodeRange | None = None,
    **place: Any,
) -> TrainingJob:
    """The job of dsrun's own workers; `place` are further fields of TrainingJob.

    Raises UsageError where the batch does not divide among the workers of all nodes."""
    spec = recipe.spec
    restarts = spec.max_restarts if options.max_restarts is None else options.max_restarts
    return TrainingJob(
        topology=topology,
        run=run,
        env=env,
        nnodes=nnodes,
        program=["--module", WORKER],
        recipe=json.dumps(to_json(recipe)),
        limits=RestartLimits(max_restarts=restarts, remedy=spec.remedy and options.remedy),
        hang_timeout=spec.hang_timeout if options.hang_timeout is None else options.hang_timeout,
        warm=spec.warm and options.warm,
        echo=spec.debug or options.debug,
        elastic=elastic,
        batches=batches_by_nodes(recipe, elastic, nnodes, topology.workers, saved=place.get("saved_batch")),
        imports=_late_imports(recipe),
        again="the same command" + ("" if options.output else f" with --output {shlex.quote(str(run))}"),
        resume=spec.resume,
        **place,
    )


def _late_imports(recipe: Recipe) -> list[str]:
    """Modules that a worker of this recipe imports only when it needs them."""
    # original_muon loads torch's compiler, whatever the optimizer: a second and a half.
    zero = ["deepspeed.runtime.engine", "deepspeed.runtime.zero.muon.original_muon"] if recipe.spec.zero != "0" else []
    kind = (recipe.spec.model_type or model_type_of(recipe.spec.model) or "").replace("-", "_")
    return [*zero, f"transformers.models.{kind}.modeling_{kind}"] if kind else zero


def merge_launcher(options: LaunchOptions, line: LauncherLine) -> LaunchOptions:
    """`options` with those of another launcher's line. Raises UsageError where they contradict each other."""
    given = line.given(*(each.name for each in fields(options)))
    refuse_other({name: getattr(options, name) for name in given}, given, line, "dsrun launch")
    return replace(options, **given)


def launch_command(line: LauncherLine, options: LaunchOptions) -> str:
    """The dsrun launch line that starts `line` with the merged options, and with the variables that say something."""
    names = "nodes node_rank master_addr master_port hostfile include exclude nproc log_format"
    own = options.argv(*names.split(), defaults=False)
    return without_tokens(command_line([*line.assignments, "dsrun", "launch", *own, "--", *line.command]))


def parse_program(argv: tuple[str, ...]) -> JobProgram:
    """What is to run: dsrun's own training, or an external program. Raises UsageError for a script that is missing."""
    first, *rest = argv
    if Path(first).name == "dsrun" and rest[:1] == ["train"]:
        return train_program(rest[1:])
    found = any_program(argv, fix="-- python my_train.py …; set variables before dsrun launch")
    if found.mode == ("--module",) and found.entry in (WORKER, "dsrun"):
        own = list(found.args)
        if found.entry == "dsrun" and own[:1] != ["train"]:
            raise UsageError("of dsrun's commands only train can be launched", fix="-- dsrun train --model …")
        return train_program(own[1:] if found.entry == "dsrun" else own)
    if found.file and not Path(found.file).is_file() and (found.mode == () or "/" in found.file):
        raise UsageError(f"there is no file {found.file}", fix="-- path/to/my_train.py --flag value")
    return found


def work_of(options: LaunchOptions, program: JobProgram, *, nodes: int = 1) -> NodeProgram:
    """What each of `nodes` machines runs; the options of `dsrun launch` take precedence over those of `dsrun train`."""
    environment_output = os.environ.get(variables.OUTPUT)
    if not program.trains:
        return _external_work(replace(options, output=options.output or environment_output), program, nodes)
    recipe = checked_recipe(list(program.args))
    named = recipe.spec.output
    if options.output and named and options.output != named:
        raise UsageError(f"--output {options.output} for dsrun launch, but {named} for dsrun train", fix="give it once")
    return training_work(recipe, replace(options, output=options.output or named or environment_output), nodes=nodes)


def _external_work(options: LaunchOptions, program: JobProgram, nodes: int) -> NodeProgram:
    """Any program but dsrun's own training."""
    topology = local_topology(options.nproc, use_cpu=False)
    elastic = node_range(options.elastic, None, nodes)
    restarts = {} if options.max_restarts is None else {"max_restarts": options.max_restarts}
    return NodeProgram(
        topology=topology,
        output=options.output or default_name(program.name, datetime.now()),
        debug=options.debug,
        dry_run=options.dry_run,
        # The program may write into its folder whatever it likes.
        force=True,
        require=partial(_require, program),
        name=program.name,
        notify=options.notify,
        elastic=elastic,
        job=partial(
            TrainingJob,
            topology=topology,
            program=_worker_argv(program),
            external=True,
            name=program.name,
            signals=options.signals,
            limits=RestartLimits(**restarts, remedy=False),
            hang_timeout=options.hang_timeout,
            warm=False,
            # Users expect its output on the terminal, as with torchrun.
            echo=True,
            echoes_noise=options.debug,
        ),
    )


def _worker_argv(program: JobProgram) -> tuple[str, ...]:
    """A `python` other than this one runs its scripts itself: torch.distributed.run would start its own otherwise."""
    if "--no-python" in program.mode or program.interpreter is None:
        return (*program.mode, program.entry, *program.args)
    found = shutil.which(program.interpreter) or program.interpreter
    if Path(found).parent == Path(sys.executable).parent:
        return (*program.mode, program.entry, *program.args)
    module = ("-m",) if "--module" in program.mode else ()
    return ("--no-python", found, "-u", *module, program.entry, *program.args)


def _require(program: JobProgram) -> None:
    """Raise MissingError here, where the rank would only end with a traceback, and be restarted."""
    if find_spec("torch") is None:
        raise MissingError(f"there is no torch in {sys.executable}, which starts the workers", fix="pip install torch")
    if "--no-python" in program.mode and shutil.which(program.entry) is None:
        raise MissingError(f"there is no program {program.entry}", fix="-- PROGRAM ARGS, with its path")
    if program.uses_python:
        named = program.interpreter or (program.entry if program.entry.startswith("/") else None)
        check_program(named or sys.executable, os.environ, print_note)
