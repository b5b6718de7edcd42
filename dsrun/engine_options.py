"""EngineOptions: what `dsrun config` and `dsrun train` can both ask of a DeepSpeed configuration.

An option that is declared here is a flag of both; engine_options.toml says what --help and the pages say of it."""

from dataclasses import dataclass, fields
from typing import Any, Literal

from dsrun.options import described


@described(__file__)
@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What `dsrun.zero.generate.spec.ZeroSpec` says of a key holds here too."""

    preset: str = "balanced"
    reduce_bucket_size: int | None = None
    allgather_bucket_size: int | None = None
    overlap_comm: bool | None = None
    nvme_path: str | None = None
    pin_memory: bool | None = None
    super_offload: bool = False
    zenflow: bool = False
    hpz: int = 1
    qwz: bool = False
    qgz: bool = False
    bf16_master_weights: bool = False
    muon_lr: float | None = None
    grad_accum_dtype: str = "auto"
    overrides: tuple[str, ...] = ()


def engine_options(spec: EngineOptions) -> dict[str, Any]:
    """The values of these options alone."""
    values = {each.name: getattr(spec, each.name) for each in fields(EngineOptions)}
    return {**values, "overrides": tuple(values["overrides"])}


OffloadDevice = Literal["none", "cpu", "nvme"]
OPTIMIZER_ONLY = "optimizer"
"""--offload optimizer: ZeRO-3 parameters stay on the GPUs."""


def offloaded_to(offload: str) -> OffloadDevice:
    """Where `--offload PLACE` moves the optimizer states."""
    places: dict[str, OffloadDevice] = {"cpu": "cpu", OPTIMIZER_ONLY: "cpu", "nvme": "nvme"}
    return places.get(offload, "none")
