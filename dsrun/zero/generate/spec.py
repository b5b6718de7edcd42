"""ZeroSpec: what can be asked of a DeepSpeed configuration by flags, and which of them do not go together.

The command line, --explain, the rules that need another flag and docs/config.md are derived from these fields and from
what spec.toml says of each. Every other key of DeepSpeed's JSON is set with --set (`dsrun.zero.generate.config`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, asdict, dataclass, fields
from functools import cache
from math import isfinite, prod
from pathlib import Path
from typing import Any, Literal

from dsrun import options as declared
from dsrun.errors import UsageError
from dsrun.options import described
from dsrun.zero.rules import read_rules

Offload = Literal["none", "cpu", "nvme"]
STAGES = (0, 1, 2, 3)


@described(Path(__file__).with_suffix(".toml"))
@dataclass(frozen=True, kw_only=True)
class ZeroSpec:
    """What a DeepSpeed configuration is asked to do; `dsrun.zero.generate.config.generate` writes it.

    `key` is the key of the JSON that an option decides, blocks joined by dots; a `copied` option that differs from its
    default is written there as it is, with `along` beside it.
    """

    target: str = "trainer"
    preset: str = "balanced"
    model: str | None = None
    gpu: str | None = None

    stage: int = 2
    reduce_bucket_size: int | None = None
    allgather_bucket_size: int | None = None
    overlap_comm: bool | None = None

    offload_optimizer: Literal["none", "cpu", "nvme"] = "none"
    offload_param: Literal["none", "cpu", "nvme"] = "none"
    nvme_path: str | None = None
    pin_memory: bool | None = None
    super_offload: bool = False
    zenflow: bool = False

    hpz: int = 1
    qwz: bool = False
    qgz: bool = False

    precision: str = "auto"
    torch_autocast: str = "none"
    bf16_master_weights: bool = False

    optimizer: str | None = None
    lr: float | None = None
    betas: tuple[float, ...] | None = None
    eps: float | None = None
    weight_decay: float | None = None
    muon_lr: float | None = None
    scheduler: str | None = None
    warmup_steps: int | None = None
    total_steps: int | None = None
    gradient_clipping: float | None = None

    global_batch_size: int | None = None
    micro_batch_size: int | None = None
    accumulation: int | None = None
    grad_accum_dtype: str = "auto"
    gpus: int | None = None

    autotp: int = 1
    sequence_parallel: int = 1
    autoep: int = 1
    deepcompile: bool = False
    activation_checkpointing: bool | None = None

    overrides: tuple[str, ...] = ()


OPTIMIZER_ONLY = "optimizer"
"""--offload optimizer: ZeRO-3 parameters stay on the GPUs."""


def offloaded_to(offload: str) -> Offload:
    """Where `--offload PLACE` moves the optimizer states."""
    places: dict[str, Offload] = {"cpu": "cpu", OPTIMIZER_ONLY: "cpu", "nvme": "nvme"}
    return places.get(offload, "none")


def from_offload(stage: int, offload: str, nvme_path: str | None = None, *, own_optimizer: bool = False) -> ZeroSpec:
    """The spec behind `--zero STAGE --offload PLACE`: optimizer states move, and under stage 3 the parameters too,
    unless PLACE is "optimizer": then the states alone, to host memory.

    `own_optimizer` leaves the choice of the optimizer to the Trainer's --optim.
    """
    place = offloaded_to(offload)
    return ZeroSpec(
        stage=stage,
        offload_optimizer=place,
        offload_param=place if stage == 3 and offload != OPTIMIZER_ONLY else "none",
        nvme_path=nvme_path if place == "nvme" else None,
        optimizer="client" if own_optimizer else None,
    )


@cache
def options() -> dict[str, Field[Any]]:
    """Every option by its field's name, in the order of its declaration."""
    return {each.name: each for each in fields(ZeroSpec)}


def flag_of(name: str) -> str:
    """The flag of a field as a user writes it."""
    return declared.flag_of(options()[name])


def given(spec: ZeroSpec) -> Iterator[tuple[Field[Any], Any]]:
    """The options that differ from their defaults, with their values."""
    for each in options().values():
        value = getattr(spec, each.name)
        if value != each.default:
            yield each, value


def as_typed(name: str, value: Any) -> str:
    """An option as it stands on the command line: "--zero 3", "--no-overlap-comm"."""
    flag = flag_of(name)
    if name == "overrides":
        return " ".join(f"{flag} {word}" for word in value)
    if isinstance(value, bool):
        return flag if value else flag.replace("--", "--no-", 1)
    text = " ".join(map(str, value)) if isinstance(value, tuple) else value
    return f"{flag} {text}"


# Single options that belong to some stages only; without their key in the JSON no rule would see them.
STAGES_OF_OPTION = {
    **dict.fromkeys(("reduce_bucket_size", "overlap_comm", "offload_optimizer", "zenflow"), (1, 2, 3)),
    "allgather_bucket_size": (1, 2),
    **dict.fromkeys(("offload_param", "hpz", "qwz", "qgz", "super_offload"), (3,)),
}


@dataclass(frozen=True, kw_only=True)
class FlagRule:
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
    """The rules about flags, in the order in which they are checked."""
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
