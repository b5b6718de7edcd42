"""A job's settings, the DeepSpeed JSON that it names, and the files and packages that it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from dsrun.doctor.check import Check, failure, fine, warning
from dsrun.doctor.machine import Machine, Target
from dsrun.errors import DsrunError
from dsrun.findings.finding import Finding
from dsrun.messages import Message
from dsrun.recipe.batch import batch_of
from dsrun.recipe.deepspeed_file import with_deepspeed_read
from dsrun.recipe.preflight.files import check_files
from dsrun.recipe.preflight.packages import check_packages
from dsrun.recipe.recipe import Recipe
from dsrun.zero.lint.check import check
from dsrun.zero.view import Flags

NEEDS_JOB = Message("needs a job: --for run.yaml, or -- train FLAGS")


def ranks_here(machine: Machine, target: Target) -> int | None:
    """Ranks on this machine; None for a job of SLURM's that does not say, as its nodes are others."""
    if target.nproc is not None:
        return target.nproc
    return len(machine.gpus) or 1 if target.runs_on(machine) else None


def world_size(machine: Machine, target: Target) -> int | None:
    """Ranks of the whole job; None where it is not known."""
    ranks = ranks_here(machine, target)
    return None if ranks is None else ranks * max(1, target.nodes)


def look_at_config(machine: Machine, target: Target) -> Iterator[Finding]:
    """What `dsrun config check --against` finds in the job's DeepSpeed JSON."""
    recipe = target.recipe
    if recipe is None or not recipe.hf.get("deepspeed"):
        return
    try:
        found = _linted(target, recipe, world_size(machine, target))
    except DsrunError as error:
        yield failure("deepspeed_json_unreadable", error.message, error.fix or "")
        return
    problems = [each for each in found if each.level != "info"]
    for each in problems:
        tell = failure if each.level == "error" else warning
        yield tell(f"deepspeed_json_{each.code}", each.message, each.fix, each.where)
    if not problems:
        name = recipe.hf["deepspeed"]
        yield fine(
            "deepspeed_json",
            Message("{name}: no error", name=Message("the inline configuration") if isinstance(name, dict) else name),
        )


def _linted(target: Target, recipe: Recipe, world: int | None) -> list[Finding]:
    """The linter's findings. Raises DsrunError where it does not get to see the file."""
    found: list[Finding] = []
    seen: list[str] = []

    def lint(
        text: str,
        file: str,
        *,
        added: Mapping[str, Any],
        values: Mapping[str, Any],
        places: Mapping[str, str],
        world_size: int | None,
        model_type: str | None,
        force: bool,
    ) -> None:
        del force
        seen.append(file)
        flags = Flags(dict(values), frozenset(places), dict(places))
        found.extend(check(text, file=file, world_size=world_size, against=flags, model_type=model_type, added=added))

    try:
        with_deepspeed_read(recipe, target.cwd, world_size=world, lint=lint)
    except DsrunError:
        if not seen and world is not None:  # a batch that does not divide among the ranks is told apart
            return _linted(target, recipe, None)
        if not seen:
            raise
    return found


DEEPSPEED_JSON = Check(
    "deepspeed_json",
    "DeepSpeed JSON",
    look_at_config,
    needs="needs a job with its own DeepSpeed JSON",
    finds="what `dsrun config check` finds in the job's JSON, against its flags",
)


def look_at_settings(machine: Machine, target: Target) -> Iterator[Finding]:
    """Flags that do not exist any more or contradict each other, and batch sizes that do not divide."""
    if target.refused:
        yield target.refused
    recipe = target.recipe
    if recipe is None:
        return
    removed = [notice for notice in recipe.notices if "is no longer a flag" in notice]
    for notice in removed:
        yield warning("settings_removed", notice, f"dsrun config upgrade {recipe.spec.config or 'run.yaml'}")
    world = world_size(machine, target)
    batch = ""
    if world is not None:
        try:
            plan = batch_of(recipe, world)
            batch = plan.sentence("GPU" if machine.gpus else "rank")
        except DsrunError as error:
            yield failure("settings_batch", error.message, error.fix or "")
            return
    if not removed:
        message = Message(
            "{settings}: valid; batch {batch}" if batch else "{settings}: valid",
            settings=recipe.spec.config or Message("all flags"),
            batch=batch,
        )
        yield fine("settings", message)


SETTINGS = Check(
    "settings",
    "settings",
    look_at_settings,
    needs=NEEDS_JOB,
    finds="unknown, removed or contradicting settings; a global batch that does not divide among the ranks",
)


def look_at_files(_: Machine, target: Target) -> Iterator[Finding]:
    """What `dsrun train` looks at before it starts: model, data, plugin, packages."""
    recipe = target.recipe
    if recipe is None:
        return
    found = []
    for look in (
        partial(check_files, recipe.spec, generation_config=recipe.hf.get("generation_config")),
        partial(check_packages, recipe),
    ):
        try:
            look()
        except DsrunError as error:
            found.append(failure("files", error.message, error.fix or ""))
    yield from found
    if not found:
        yield fine("files", Message("model, data and packages that the job names are here, or on the Hub"))


FILES = Check(
    "files",
    "model and data files",
    look_at_files,
    needs=NEEDS_JOB,
    finds="model, data, plugin or templates that are missing, empty or of another kind; packages that a flag needs",
)
