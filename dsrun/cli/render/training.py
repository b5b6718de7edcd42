"""Rendered jobs that are dsrun's own training."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dsrun.cli.render.rendered_job import refuse_secrets
from dsrun.errors import UsageError
from dsrun.launch.node.checked_recipe import with_deepspeed_checked
from dsrun.launch.program import JobProgram, train_program
from dsrun.recipe.batch import batch_of
from dsrun.recipe.deepspeed_file import with_deepspeed_read
from dsrun.recipe.parsed_value import COMMAND_LINE
from dsrun.recipe.preflight.files import check_inputs
from dsrun.recipe.recipe import DEFAULT, Recipe
from dsrun.recipe.resolve import resolve
from dsrun.recipe.trackers import check_packages
from dsrun.system.terminal.stderr import print_note

if TYPE_CHECKING:
    from dsrun.cli.render.rendered_job import JobRendering


def refuse_no_training(name: str, cwd: Path) -> None:
    """A run file may hold only the options that a site uses for every job."""
    from dsrun.recipe.runfile import read_run_file  # PyYAML, only where it is needed

    if not {"model", "model_type", "config_name"} & {each.name for each in read_run_file(cwd / name, name)}:
        what = f"no command after --, and {name} does not name a model to train"
        raise UsageError(what, fix="add train: {model: …} to it, or write -- train --model demo-t5")


def training_of(args: Sequence[str], cwd: Path, rendering: "JobRendering") -> tuple[Recipe, JobProgram]:
    """What `dsrun train ARGS` asks for, and the program of the job. Raises UsageError for what a job cannot be."""
    recipe = resolve(args, cwd)
    for name in ("token", "hub_token"):
        if recipe.given(name) and recipe.sources[name] == "command line":
            what = f"--{name.replace('_', '-')} would be written into the {rendering.noun}, which everybody can read"
            raise UsageError(what, fix=rendering.training_token_fix)
    if recipe.spec.explain or recipe.spec.dry_run:
        raise UsageError("--explain and --dry-run of dsrun train do not start a job", fix="remove them")
    for notice in recipe.notices:
        print_note(notice)
    name = recipe.spec.model or recipe.spec.model_type or "train"
    if any(source not in (COMMAND_LINE, DEFAULT) for source in recipe.sources.values()):
        # The job may start tomorrow, and again after a requeue: by what run.yaml says now.
        from dsrun.recipe.resolved import frozen_argv  # and the run folder

        args = frozen_argv(with_deepspeed_read(recipe, cwd))
    refuse_secrets(args, rendering)
    program = train_program(
        args, output=recipe.spec.output, name=name.rstrip("/").rpartition("/")[2], on_cpu=bool(recipe.hf.get("use_cpu"))
    )
    return recipe, program


def check_training(
    recipe: Recipe, nodes: int, workers: int, *, elastic: str | None, files: bool, packages: bool
) -> None:
    """Raise now what `dsrun train` would raise on the nodes, with `workers` on each: of `files` and `packages` where
    they are those of this machine, and of the batch, where the job is `elastic` for each number of nodes."""
    world_size = nodes * workers
    if files:
        check_inputs(recipe)
        recipe = with_deepspeed_checked(recipe, world_size)
    if packages:
        check_packages(recipe)
    try:
        if elastic or recipe.spec.elastic:
            from dsrun.recipe.preflight.elastic import batches_by_nodes, node_range

            batches_by_nodes(recipe, node_range(elastic, recipe.spec.elastic, nodes), nodes, workers)
        else:
            batch_of(recipe, world_size)
    except UsageError as error:
        # The render command has no such flag.
        place = recipe.sources.get("global_batch_size", DEFAULT)
        fix = str(error.fix).replace("--global-batch-size ", "global_batch_size: ") + f" in {place}"
        if place in (COMMAND_LINE, DEFAULT):
            fix = f"{error.fix}, after -- train"
        raise UsageError(error.message, fix=fix) from None
