"""The training flags in force for a command line over a run.yaml, without asking for a model, data or hardware."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dsrun.recipe.batch import batch_plan
from dsrun.recipe.flags import hf_flags
from dsrun.recipe.parsed_value import ParsedValue
from dsrun.recipe.parser import parse, read_json
from dsrun.recipe.removed import translate

# What the Trainer and `dsrun train` both take when nothing is said.
DEFAULT_MICRO_BATCH = 8
SIZES = ("per_device_train_batch_size", "gradient_accumulation_steps")


def flags_in_force(argv: Sequence[str], run_file: str | None, cwd: Path) -> dict[str, ParsedValue]:
    """Every given flag by canonical name: `argv` over an args.json in it, that over the run.yaml (which `argv` may name
    with --config), removed flags translated.

    Raises UsageError for an unknown flag, a value that a flag does not take, and a file that cannot be read.
    """
    parsed = parse(argv)
    found = _translated(parsed.given)
    if parsed.json_file is not None:
        found = _translated(read_json(cwd / parsed.json_file, parsed.json_file)) | found
    for file in (found["config"].value if "config" in found else None, run_file):
        if file is not None:
            from dsrun.recipe.runfile import read_run_file  # PyYAML, only where it is needed

            found = _translated(read_run_file(cwd / file, file)) | found
    return found


def _translated(given: Iterable[ParsedValue]) -> dict[str, ParsedValue]:
    given = list(given)
    present = {each.name for each in given}
    today = (translate(each, present)[0] for each in given)
    return {each.name: each for each in today if each is not None}


def trainer_values(given: dict[str, ParsedValue], world_size: int | None) -> dict[str, Any]:
    """The training arguments as the Trainer will see them, defaults included; what cannot be known is left out.

    `world_size` counts ranks. With a global batch size the accumulation steps follow from it, and
    `train_batch_size` is there too. Raises UsageError when the batch sizes do not divide.
    """
    values = {flag.key: flag.default for flag in hf_flags().values()}
    values |= {hf_flags()[name].key: each.value for name, each in given.items() if name in hf_flags()}
    own = {
        name: given[name].value for name in ("global_batch_size", "micro_batch_size", *SIZES) if name in given
    }
    total, micro = own.get("global_batch_size"), own.get("micro_batch_size") or own.get(SIZES[0])
    if micro is not None:
        values[SIZES[0]] = micro
    if total is None:
        return values
    values["train_batch_size"] = total
    if world_size is not None:
        plan = batch_plan(
            global_batch_size=total,
            micro_batch_size=micro,
            accumulation=own.get(SIZES[1]),
            world_size=world_size,
            default_micro=DEFAULT_MICRO_BATCH,
        )
        return values | dict(zip(SIZES, (plan.micro_batch, plan.accumulation), strict=True))
    unknown = [name for name, size in zip(SIZES, (micro, own.get(SIZES[1])), strict=True) if size is None]
    return {name: value for name, value in values.items() if name not in unknown}
