"""A training run as a job for the supervisor, and what the user reads of it: for `dsrun train` and `dsrun launch`."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsrun.cli.output import ignore_closed_stream, print_detail, print_error, print_note
from dsrun.errors import EXIT_RESUME, EXIT_TOOL_FAILED

if TYPE_CHECKING:
    from dsrun.launch.job import Job, Outcome, Topology
    from dsrun.recipe.recipe import Recipe
    from dsrun.runs.folder import RunFolder

WORKER = "dsrun.train"


def checked_recipe(args: list[str]) -> Recipe:
    """The resolved flags. Raises UsageError for invalid settings and for files that do not exist or cannot be read."""
    from dsrun.recipe.files import check_files
    from dsrun.recipe.resolve import resolve
    from dsrun.recipe.resolved import with_deepspeed_read
    from dsrun.recipe.trackers import check_packages

    recipe = resolve(args, Path.cwd())
    if not recipe.spec.explain:
        for notice in recipe.notices:
            print_note(notice)
        check_files(recipe.spec, generation_config=recipe.hf.get("generation_config"))
        check_packages(recipe)
        recipe = with_deepspeed_read(recipe, Path.cwd())
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
    from dsrun.recipe.resolved import to_json

    spec = recipe.spec
    batch = batch_plan(
        global_batch_size=spec.global_batch_size,
        micro_batch_size=spec.micro_batch_size or recipe.hf.get("per_device_train_batch_size"),
        accumulation=recipe.hf.get("gradient_accumulation_steps"),
        world_size=nnodes * topology.workers,
        default_micro=8,
    )
    fields: dict[str, Any] = {
        "program": ["--module", WORKER],
        "recipe": json.dumps(to_json(recipe)),
        "limits": Limits(max_restarts=spec.max_restarts, remedy=spec.remedy),
        "hang_timeout": spec.hang_timeout,
        "warm": spec.warm,
        "terminal_width": shutil.get_terminal_size().columns if sys.stderr.isatty() else None,
        "echo": spec.debug,
        "micro_batch": batch.micro_batch,
        "accumulation": batch.accumulation,
        "imports": late_imports(recipe),
        "again": "the same command" + ("" if named else f" with --output {shlex.quote(str(run))}"),
        "resume": spec.resume,
    }
    return Job(topology=topology, run=run, env=env, nnodes=nnodes, **{**fields, **more})


def late_imports(recipe: Recipe) -> list[str]:
    """What a worker of this recipe loads only when it needs it."""
    spec = recipe.spec
    # original_muon loads torch's compiler, whatever the optimizer: a second and a half.
    names = ["deepspeed.runtime.engine", "deepspeed.runtime.zero.muon.original_muon"] if spec.zero != "0" else []
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
        print_detail(line)
        _keep(line, folder)


def teller(folder: RunFolder) -> Callable[[str], None]:
    """Tells the user what the supervisor does, and console.log with him."""

    def tell(line: str) -> None:
        print_note(line)
        _keep(f"note: {line}", folder)

    return tell


def _keep(line: str, folder: RunFolder) -> None:
    with suppress(OSError), folder.console.open("a", encoding="utf-8") as log:
        log.write(line + "\n")


def report(outcome: Outcome, folder: RunFolder, *, external: bool = False) -> int:
    """Say how the run ended; returns the exit code."""
    if outcome.exit_code == 0:
        with ignore_closed_stream(1):
            click.echo(folder.model if folder.model.is_dir() and not external else folder.path)
    elif outcome.exit_code == EXIT_RESUME and outcome.message:
        print_note(outcome.message)
    elif outcome.message:
        print_error(outcome.message)
        if outcome.advice:
            print_detail(f"       {outcome.advice}")
        if outcome.log and outcome.exit_code == EXIT_TOOL_FAILED:
            print_detail(f"       the whole story is in {outcome.log}")
    return outcome.exit_code


def default_output(recipe: Recipe) -> str:
    """The run folder where --output was not given."""
    from dsrun.runs.folder import default_name

    return default_name(recipe.spec.model or recipe.spec.model_type or "model", datetime.now())


def with_flags(job: Job, recipe: Recipe) -> Job:
    """The job with the flags as arguments of the worker, for --dry-run: a command that runs without a supervisor."""
    flags = [word for word in recipe.argv if word.replace("_", "-") != "--dry-run"]
    return replace(job, program=[*job.program, *flags])


def show(argv: Sequence[str], changes: Mapping[str, str | None]) -> None:
    """--dry-run: what would be set, and the command that would be run."""
    for name, value in sorted(changes.items()):
        click.echo(f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}")
    click.echo(shlex.join(argv))
