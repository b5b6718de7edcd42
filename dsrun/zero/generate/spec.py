"""ZeroSpec: everything that can be asked of a DeepSpeed configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, dataclass, fields
from functools import cache
from typing import Any

from dsrun.zero.generate.offload_options import OffloadOptions, PrecisionOptions
from dsrun.zero.generate.options import MemoryOptions, Offload
from dsrun.zero.generate.running_options import RunningOptions
from dsrun.zero.generate.training_options import OptimizerOptions, ParallelOptions

__all__ = ["TITLES", "Offload", "ZeroSpec", "flag_of", "from_offload", "given", "options"]

# The groups in the order of --help and of docs/config.md.
TITLES = {
    "target": "For whom",
    "zero": "ZeRO",
    "zero3": "ZeRO 3",
    "offload": "Offload",
    "zenflow": "ZenFlow",
    "zeropp": "ZeRO++",
    "precision": "Precision",
    "optimizer": "Optimizer",
    "batch": "Batch",
    "parallel": "Parallelism",
    "compile": "Compilation",
    "activations": "Activations",
    "checkpoint": "Checkpoints",
    "monitor": "Observation",
}


@dataclass(frozen=True, kw_only=True)
class ZeroSpec(
    RunningOptions, ParallelOptions, OptimizerOptions, PrecisionOptions, OffloadOptions, MemoryOptions
):
    """What a DeepSpeed configuration is asked to do; `dsrun.zero.generate.config.generate` writes it."""


@cache
def options() -> dict[str, Field[Any]]:
    """Every option by its field's name, in the order of its declaration."""
    return {each.name: each for each in fields(ZeroSpec)}


def flag_of(name: str) -> str:
    """The flag of a field as a user writes it."""
    return "--" + (options()[name].metadata["flag"] or name).replace("_", "-")


def given(spec: ZeroSpec) -> Iterator[tuple[Field[Any], Any]]:
    """The options that differ from their defaults, with their values."""
    for each in options().values():
        value = getattr(spec, each.name)
        if value != each.default:
            yield each, value


def from_offload(
    stage: int, offload: str, nvme_path: str | None = None, *, own_optimizer: bool = False
) -> ZeroSpec:
    """The spec behind `--zero STAGE --offload PLACE`: optimizer states move, and under stage 3 the parameters too.

    `own_optimizer` leaves the choice of the optimizer to the Trainer's --optim.
    """
    place: Offload = "cpu" if offload == "cpu" else "nvme" if offload == "nvme" else "none"
    return ZeroSpec(
        stage=stage,
        offload_optimizer=place,
        offload_param=place if stage == 3 else "none",
        nvme_path=nvme_path if place == "nvme" else None,
        optimizer="client" if own_optimizer else None,
    )
