"""Flags of `dsrun config` that take other values, do nothing, or do not go together, which the JSON does not show.

The rules are in the table "flags" of rules.toml.
"""

from collections.abc import Mapping
from dataclasses import asdict
from math import isfinite, prod
from typing import Any

from dsrun.datafiles import SubjectNames, evaluate
from dsrun.errors import UsageError
from dsrun.zero.generate.spec import ZeroSpec, flag_of, given
from dsrun.zero.rules import read_rules, rules

STAGES = (0, 1, 2, 3)

# Single options that belong to some stages only; without their key in the JSON no rule would see them.
STAGES_OF_OPTION = {
    **dict.fromkeys(("reduce_bucket_size", "overlap_comm", "offload_optimizer", "zenflow"), (1, 2, 3)),
    "allgather_bucket_size": (1, 2),
    **dict.fromkeys(("offload_param", "hpz", "qwz", "qgz", "super_offload"), (3,)),
}


def _batch_differs(spec: ZeroSpec) -> bool:
    """Whether the batch sizes that are given leave no number for the rest."""
    shared = max(1, spec.autotp * spec.sequence_parallel)
    parts = (spec.micro_batch_size, spec.accumulation, spec.gpus and spec.gpus // shared)
    made = prod(each or 1 for each in parts)
    total = spec.global_batch_size
    return total is not None and (total != made if all(parts) else total % made != 0)


def names_of(spec: ZeroSpec) -> SubjectNames:
    """What conditions of rules may name of flags."""
    return SubjectNames(spec, read_rules("terms")["flags"], batch_differs=_batch_differs(spec))


def check_flags(spec: ZeroSpec) -> None:
    """Raise UsageError for a value that a flag does not take, and for the first flags that do not go together."""
    if spec.stage not in STAGES:
        raise UsageError(f"ZeRO stage {spec.stage} does not exist", fix="choose --zero 0, 1, 2 or 3")
    for each, value in given(spec):
        _check_value(each.name, each.metadata, value)
        stages = STAGES_OF_OPTION.get(each.name)
        if stages and spec.stage not in stages:
            listed = " or ".join(map(str, stages))
            raise UsageError(f"{flag_of(each.name)} does nothing under --zero {spec.stage}", fix=f"use --zero {listed}")
    names = names_of(spec)
    for rule in rules("flags"):
        if evaluate(rule.when, names):
            raise UsageError(rule.message.format(**asdict(spec)), fix=rule.fix.format(**asdict(spec)))


def _check_value(name: str, meta: Mapping[str, Any], value: Any) -> None:
    """One option by itself: its choices and its bounds."""
    for each in value if isinstance(value, tuple) else (value,):
        if meta["choices"] and each not in meta["choices"]:
            raise UsageError(f"{flag_of(name)}: {each!r} is not one of {', '.join(meta['choices'])}")
        if isinstance(each, float) and not isfinite(each):
            raise UsageError(f"{flag_of(name)}: {each} is not a number that JSON can hold")
        if meta["least"] is not None and not each >= meta["least"]:
            raise UsageError(f"{flag_of(name)}: {each} is less than {meta['least']}")
        if meta["most"] is not None and each > meta["most"]:
            raise UsageError(f"{flag_of(name)}: {each} is more than {meta['most']}")
