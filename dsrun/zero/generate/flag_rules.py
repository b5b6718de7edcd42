"""Flags of `dsrun config` that take other values, do nothing, or do not go together, which the JSON does not show.

What each rule says is in the table "flags" of rules.toml, when it holds in `WHEN`, under one name.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from math import isfinite, prod
from typing import Any, NamedTuple

from dsrun.errors import UsageError
from dsrun.zero.generate.spec import ZeroSpec, flag_of, given
from dsrun.zero.rules import read_rules

STAGES = (0, 1, 2, 3)

# Single options that belong to some stages only; without their key in the JSON no rule would see them.
STAGES_OF_OPTION = {
    **dict.fromkeys(("reduce_bucket_size", "overlap_comm", "offload_optimizer", "zenflow"), (1, 2, 3)),
    "allgather_bucket_size": (1, 2),
    **dict.fromkeys(("offload_param", "hpz", "qwz", "qgz", "super_offload"), (3,)),
}


class FlagRule(NamedTuple):
    """Flags that do not go together and that the JSON does not show."""

    when: Callable[[ZeroSpec], bool]
    message: str
    fix: str
    source: str


def _rates(spec: ZeroSpec) -> bool:
    return any(each is not None for each in (spec.lr, spec.betas, spec.eps, spec.weight_decay))


def _uses_nvme(spec: ZeroSpec) -> bool:
    return "nvme" in (spec.offload_optimizer, spec.offload_param)


def _shared(spec: ZeroSpec) -> int:
    """Ranks that work on the same samples."""
    return max(1, spec.autotp * spec.sequence_parallel)


def _batch_differs(spec: ZeroSpec) -> bool:
    """Whether the batch sizes that are given leave no number for the rest."""
    parts = (spec.micro_batch_size, spec.accumulation, spec.gpus and spec.gpus // _shared(spec))
    made = prod(each or 1 for each in parts)
    total = spec.global_batch_size
    return total is not None and (total != made if all(parts) else total % made != 0)


WHEN: dict[str, Callable[[ZeroSpec], bool]] = {
    "nvme_path_unused": lambda s: s.nvme_path is not None and not _uses_nvme(s),
    "nvme_path_missing": lambda s: _uses_nvme(s) and not s.nvme_path,
    "pin_memory_unused": lambda s: s.pin_memory is not None and s.offload_optimizer == s.offload_param == "none",
    "rates_without_optimizer": lambda s: (
        s.target == "trainer"
        and _rates(s)
        and (s.optimizer == "client" or (s.optimizer is None and s.offload_optimizer == "none"))
    ),
    "client_with_rates": lambda s: s.optimizer == "client" and _rates(s),
    "client_with_scheduler": lambda s: s.optimizer == "client" and s.scheduler not in (None, "none"),
    "muon_lr_without_muon": lambda s: s.optimizer != "muon" and s.muon_lr is not None,
    "betas_invalid": lambda s: (
        s.betas is not None and (len(s.betas) != 2 or max(s.betas) >= 1 or s.optimizer in ("adagrad", "sgd"))
    ),
    "eps_unknown": lambda s: s.eps is not None and s.optimizer in ("lion", "sgd"),
    "schedule_without_end": lambda s: (
        s.target == "deepspeed" and s.scheduler in ("linear", "cosine") and s.total_steps is None
    ),
    "steps_without_scheduler": lambda s: (
        s.target == "trainer" and s.scheduler is None and (s.warmup_steps is not None or s.total_steps is not None)
    ),
    "warmup_too_long": lambda s: (
        None not in (s.total_steps, s.warmup_steps) and (s.warmup_steps or 0) >= (s.total_steps or 0)
    ),
    "autotp_and_sequence_parallel": lambda s: s.autotp > 1 and s.sequence_parallel > 1,
    "gpus_do_not_divide": lambda s: s.gpus is not None and s.gpus % _shared(s) != 0,
    "batch_differs": _batch_differs,
    "sequence_parallel_without_gpus": lambda s: s.target == "deepspeed" and s.sequence_parallel > 1 and s.gpus is None,
    "autoep_stage_3_and_sequence_parallel": lambda s: s.autoep > 1 and s.stage == 3 and s.sequence_parallel > 1,
}


@cache
def flag_rules() -> tuple[FlagRule, ...]:
    return tuple(FlagRule(when=WHEN[name], **rule) for name, rule in read_rules("flags").items())


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
    for rule in flag_rules():
        if rule.when(spec):
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
