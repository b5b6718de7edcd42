"""The built-in demos as ordinary models and data files."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from dsrun.demo.build import DemoPaths, data_only, materialise
from dsrun.demo.models import DEFAULTS
from dsrun.recipe.resolve import Recipe, with_defaults
from dsrun.recipe.spec import TrainSpec
from dsrun.system.variables import cache_root
from dsrun.train.model.load import decide_task, load_config

BATCH_FLAGS = ("global_batch_size", "micro_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps")
T5_PREFIX = "translate English to Romanian: "


def with_demo(recipe: Recipe, *, notify: Callable[[str], None]) -> tuple[Recipe, str]:
    """Replace a demo's name by the folder it was made in, and missing data by the demo's; also returns the model's name
    as the user knows it."""
    spec = recipe.spec
    title = spec.model or spec.model_type or ""
    if spec.model in DEFAULTS:
        paths = materialise(spec.model, cache_root() / "demo" / spec.model)
        recipe = with_defaults(recipe, _settings(recipe, spec.model), spec.model)
        # The demos are untrained by nature: their weights come from the run.
        recipe = replace(recipe, spec=replace(recipe.spec, model=str(paths.model), from_scratch=True))
    elif has_data(spec):
        return recipe, title
    else:
        task = decide_task(load_config(spec), spec.task, spec.model)
        paths = data_only(task, cache_root() / "demo" / f"data-{task}")
        notify(f"no --dataset or --train-file given: using the built-in demo data ({paths.task})")
    if has_data(spec):
        return recipe, title
    return with_defaults(recipe, _data(paths, spec), "demo data"), title


def has_data(spec: TrainSpec) -> bool:
    """Whether the user named any data."""
    return any((spec.dataset, spec.train_file, spec.validation_file, spec.test_file))


def _settings(recipe: Recipe, demo: str) -> dict[str, object]:
    """The demo's hyperparameters. Its models are so small that a rank takes its whole share at once."""
    values = dict(DEFAULTS[demo])
    given = [name for name in BATCH_FLAGS if recipe.given(name)]
    share, rest = divmod(int(str(values["global_batch_size"])), int(os.environ.get("WORLD_SIZE", "1")))
    if given:
        del values["global_batch_size"]
    elif not rest and not recipe.spec.auto_micro_batch:
        values["micro_batch_size"] = share
    return values


def _data(paths: DemoPaths, spec: TrainSpec) -> dict[str, object]:
    values: dict[str, object] = {
        "train_file": str(paths.train_file),
        "validation_file": str(paths.validation_file),
        "test_file": str(paths.test_file),
    }
    if paths.task == "seq2seq":
        values |= {"source_lang": paths.source_lang, "target_lang": paths.target_lang}
        if spec.model not in DEFAULTS:
            values["source_prefix"] = T5_PREFIX
    return values
