"""ZeroSpec: what can be asked of a DeepSpeed configuration by flags, and which of them do not go together.

The command line, --explain, the rules that need another flag and docs/config.md are derived from these fields and from
what spec.toml says of each. Every other key of DeepSpeed's JSON is set with --set (`dsrun.zero.generate.config`)."""

from collections.abc import Iterator
from dataclasses import Field, dataclass, fields
from functools import cache
from typing import Any, Literal

from dsrun import options as declared
from dsrun.engine_options import OPTIMIZER_ONLY, EngineOptions, offloaded_to
from dsrun.options import described


@described(__file__)
@dataclass(frozen=True, kw_only=True)
class ZeroSpec(EngineOptions):
    """What a DeepSpeed configuration is asked to do; `dsrun.zero.generate.config.generate` writes it.

    `key` is the key of the JSON that an option decides, blocks joined by dots; a `copied` option that differs from its
    default is written there as it is, with `along` beside it."""

    target: str = "trainer"
    model: str | None = None
    gpu: str | None = None

    stage: int = 2

    offload_optimizer: Literal["none", "cpu", "nvme"] = "none"
    offload_param: Literal["none", "cpu", "nvme"] = "none"

    precision: str = "auto"
    torch_autocast: str = "none"

    optimizer: str | None = None
    lr: float | None = None
    betas: tuple[float, ...] | None = None
    eps: float | None = None
    weight_decay: float | None = None
    scheduler: str | None = None
    warmup_steps: int | None = None
    total_steps: int | None = None
    gradient_clipping: float | None = None

    global_batch_size: int | None = None
    micro_batch_size: int | None = None
    accumulation: int | None = None
    gpus: int | None = None

    autotp: int = 1
    sequence_parallel: int = 1
    autoep: int = 1
    deepcompile: bool = False
    activation_checkpointing: bool | None = None


def from_offload(stage: int, offload: str, nvme_path: str | None = None, *, own_optimizer: bool = False) -> ZeroSpec:
    """The spec behind `--zero STAGE --offload PLACE`: optimizer states move, and under stage 3 the parameters too,
    unless PLACE is "optimizer": then the states alone, to host memory.

    `own_optimizer` leaves the choice of the optimizer to the Trainer's --optim."""
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
