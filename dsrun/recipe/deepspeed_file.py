"""The DeepSpeed JSON of `--deepspeed`: read once, checked, and the source of training arguments that no flag gives."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from dsrun.datafiles import toml_beside
from dsrun.errors import UsageError
from dsrun.recipe.batch import SIZES, trainer_values
from dsrun.recipe.recipe import Recipe
from dsrun.recipe.resolve import with_defaults
from dsrun.refusals import Refusals

BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
SETS = toml_beside(__file__)
BETAS = "optimizer.params.betas"
RATES = ("layer_lr_decay", "lr_for", "loraplus_lr_ratio")
# dsrun derives both from the flags; where they are missing, accelerate takes one accumulation step instead.
DERIVED = dict.fromkeys(BATCH[1:], "auto")
# Without it a ZeRO-3 run has no weights to save as model/ at its end.
GATHER = ("stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save")


class DeepspeedFileCheck(Protocol):
    """Raises UsageError for what DeepSpeed or the Trainer would stop on.

    `text` is the JSON of `file`, and `added` what dsrun adds to it, blocks joined by dots. `values` are the training
    arguments in force, `places` where those were given that were; `world_size` counts ranks."""

    def __call__(
        self,
        text: str,
        file: str,
        *,
        added: Mapping[str, Any],
        values: Mapping[str, Any],
        places: Mapping[str, str],
        world_size: int | None,
        model_type: str | None,
        force: bool,
    ) -> None: ...


def with_deepspeed_read(
    recipe: Recipe, cwd: Path, *, world_size: int | None = None, lint: DeepspeedFileCheck | None = None
) -> Recipe:
    """The recipe with the content of the `--deepspeed` file, which may be edited while the run is on.

    Its numbers become the training arguments that were not given. Its batch sizes become "auto", so that a memory
    fallback can halve the micro batch. Raises UsageError if the file cannot be read, is not a JSON object, or `lint`
    refuses it for `world_size` ranks."""
    named = recipe.hf.get("deepspeed")
    if named is None:
        return recipe
    inline = isinstance(named, dict)
    text, file = (json.dumps(named), "--deepspeed") if inline else (read_text(cwd / named, str(named)), str(named))
    linting = partial(lint, text, file, force=recipe.spec.force) if lint else None
    try:
        config = named if inline else as_object(text, str(named))
    except UsageError:
        if linting:  # it knows more about a text that is not JSON
            linting(added={}, values={}, places={}, world_size=None, model_type=None)
        raise
    _check_rates(recipe, config, file)
    completed = with_defaults(recipe, _numbers(config), file)
    zero = config.get("zero_optimization")
    lacks = isinstance(zero, dict) and zero.get("stage") == 3 and not any(zero.get(key) for key in GATHER)
    gather = GATHER[:1] if lacks else ()
    if linting:
        added = DERIVED | {f"zero_optimization.{key}": True for key in gather}
        _lint(completed, file, world_size, partial(linting, added=added))
    config = {**DERIVED, **config, **{key: "auto" for key in BATCH if _is_number(config.get(key))}}
    if gather:
        config["zero_optimization"] = {**config["zero_optimization"], **dict.fromkeys(gather, True)}
    return replace(completed, hf={**completed.hf, "deepspeed": config})


def read_text(path: Path, shown: str) -> str:
    """The text of a DeepSpeed JSON file, called `shown` in errors. Raises UsageError."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--deepspeed {shown}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--deepspeed {shown}: not JSON: {error}") from error


def as_object(text: str, shown: str) -> dict[str, Any]:
    """The JSON object in the text of a file, called `shown` in errors. Raises UsageError."""
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"--deepspeed {shown}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from error
    except RecursionError:
        raise UsageError(f"--deepspeed {shown}: nested too deeply") from None
    if not isinstance(config, dict):
        raise UsageError(f"--deepspeed {shown}: is not a JSON object")
    return config


def _check_rates(recipe: Recipe, config: Mapping[str, Any], file: str) -> None:
    """Raise UsageError for different learning rates under what knows only one: DeepSpeed's schedules set the rate of
    every group (runtime/lr_schedules.py, update_lr), and its Muon makes the groups itself."""
    given = [name for name in RATES if recipe.given(name)]
    kind = str(_at(config, "optimizer.type") or "")
    block = "scheduler" if config.get("scheduler") else "optimizer" if kind.lower() == "muon" else None
    if given and block:
        flag = "--lr_scheduler_type" if block == "scheduler" else "--optim"
        names = {"where": recipe.where(given[0]), "block": block, "file": file, "flag": flag}
        raise Refusals(__file__, "refusals.toml").error("rates.block", **names)


def _lint(recipe: Recipe, file: str, world_size: int | None, linting: partial[None]) -> None:
    from dsrun.models.families import model_type_of  # a run without a file of its own does without

    given = {name: recipe.value(name) for name in recipe.sources if recipe.given(name)}
    own = {"micro_batch_size": SIZES[0], "global_batch_size": BATCH[0]}
    try:
        values = trainer_values(given, world_size)
    except UsageError as error:
        if any(recipe.sources.get(SETS[key]) == file for key in BATCH):
            raise UsageError(f"{file}: {error.message}", fix='write "auto" for the batch sizes in the file') from None
        raise
    if recipe.spec.auto_micro_batch:
        values = {name: value for name, value in values.items() if name not in SIZES}
    linting(
        values=values,
        places={own.get(name, name): recipe.where(name) for name in given},
        world_size=world_size,
        model_type=recipe.spec.model_type or model_type_of(recipe.spec.model),
    )


def _numbers(config: Mapping[str, Any]) -> dict[str, Any]:
    """The training arguments that the file has numbers for."""
    found = {flag: value for key, flag in SETS.items() if _is_number(value := _at(config, key))}
    betas = _at(config, BETAS)
    if isinstance(betas, list) and len(betas) == 2 and all(map(_is_number, betas)):
        found |= {"adam_beta1": betas[0], "adam_beta2": betas[1]}
    return found


def _at(config: Mapping[str, Any], dotted: str) -> Any:
    """The value at a key, blocks joined by dots; None where there is none."""
    value: Any = config
    for key in dotted.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


DEFAULT_S = 1800.0
"""torch's own for gloo. DeepSpeed has 10 minutes, and a rank that saves a large checkpoint can need longer."""


def group_timeout_s(ddp_timeout: int | None, environ: Mapping[str, str]) -> float:
    """Seconds: --ddp_timeout, else DEEPSPEED_TIMEOUT (minutes), else half an hour. Raises UsageError where one of them
    is not what its reader takes: DeepSpeed's import fails with that variable as a fraction."""
    minutes = environ.get("DEEPSPEED_TIMEOUT")
    Refusals(__file__, "refusals.toml").check("timeout", minutes=minutes, ddp_timeout=ddp_timeout, int=int)
    if ddp_timeout is not None:
        return float(ddp_timeout)
    return 60.0 * int(minutes) if minutes else DEFAULT_S
