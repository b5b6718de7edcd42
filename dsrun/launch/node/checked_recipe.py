"""The recipe of dsrun's own training, checked before anything starts: flags, files, packages, --deepspeed, batch."""

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from dsrun.engine_options import EngineOptions, engine_options
from dsrun.recipe.deepspeed_file import with_deepspeed_read
from dsrun.recipe.flags import ENGINE_OPTIMIZERS, ZERO_STAGE
from dsrun.recipe.preflight.files import check_inputs
from dsrun.recipe.recipe import Recipe
from dsrun.recipe.resolve import resolve
from dsrun.recipe.trackers import check_packages
from dsrun.system import variables
from dsrun.system.terminal.stderr import print_note


def checked_recipe(args: list[str]) -> Recipe:
    """The resolved flags. Raises UsageError for invalid settings and for files that do not exist or cannot be read."""
    tokens = json.loads(os.environ.get(variables.TOKENS) or "{}")
    recipe = resolve([*args, *(f"--{name}={value}" for name, value in tokens.items())], Path.cwd())
    if recipe.given("log_format"):
        from dsrun.system.terminal.log_format import choose  # few runs give it

        choose(recipe.spec.log_format)
    if tokens:
        recipe = replace(recipe, argv=tuple(args))
    if not recipe.spec.explain:
        for notice in recipe.notices:
            print_note(notice)
        from dsrun.system.terminal.status_line import status  # a batch script is rendered without

        with status("checking the files"):
            check_inputs(recipe)
            check_packages(recipe)
    return recipe


def with_deepspeed_checked(recipe: Recipe, world_size: int | None) -> Recipe:
    """The recipe with its --deepspeed file read; prints the linter's warnings. Raises UsageError for its errors.

    A requeued job goes on by the file as it was, whatever has become of it. Without one the flags for DeepSpeed are
    tried."""
    if not recipe.hf.get("deepspeed"):
        _try_engine_options(recipe)
        return recipe
    from dsrun.runs.attempts import is_another

    if is_another(os.environ):
        return with_deepspeed_read(recipe, Path.cwd(), world_size=world_size)
    from dsrun.zero.lint.config_check import refuse_errors  # only where it is needed

    lint = partial(refuse_errors, notify=print_note)
    return with_deepspeed_read(recipe, Path.cwd(), world_size=world_size, lint=lint)


def _try_engine_options(recipe: Recipe) -> None:
    """Raise UsageError for flags of DeepSpeed's configuration that do not go together."""
    spec = recipe.spec
    asked = recipe.value("optim") in ENGINE_OPTIMIZERS or engine_options(spec) != engine_options(EngineOptions())
    if not asked or spec.zero == "auto":
        return
    from dsrun.zero.generate.config import config_of_flags  # few runs give any

    stage = ZERO_STAGE if spec.zero is None else int(spec.zero)
    config_of_flags(stage, offload=spec.offload, optim=recipe.hf.get("optim"), options=spec, hidden_size=None)
