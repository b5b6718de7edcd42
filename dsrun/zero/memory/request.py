"""What is asked of a plan: the model, the GPUs, the lengths and the wishes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

from dsrun.errors import UsageError
from dsrun.model_families import family_of, overflow_in_fp16
from dsrun.zero.memory.activations import Attention, Work
from dsrun.zero.memory.gpus_arg import Cluster
from dsrun.zero.memory.model.architecture import Architecture
from dsrun.zero.memory.states import Precision

LONGEST = 100_000_000
"""Tokens; nothing trains on longer samples."""
LARGEST_BATCH = 100_000_000
LARGEST_RANK = 65_536
USUAL_LENGTH = 1024

SHARES = {"conservative": 0.50, "balanced": 0.65, "aggressive": 0.90}
"""Share of a GPU's memory that a preset lets a run fill."""
PHYSICAL = 0.96
"""Share that can be filled at all; the rest is reserved by driver and ECC."""

USUAL_HOST = 256.0
"""GiB of host memory per GPU that a node is taken to have when nothing is said; 2 TiB beside eight GPUs is common."""

Switch = Literal["on", "off", "auto"]


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """Everything a plan depends on. Lengths are tokens per sample, `host_memory` GiB per node."""

    model: Architecture
    cluster: Cluster
    length: int = USUAL_LENGTH
    source_length: int = USUAL_LENGTH
    global_batch: int | None = None
    lora: int | None = None
    preset: str = "balanced"
    precision: Precision = "bf16"
    checkpointing: Switch = "auto"
    attention: Attention = "fused"
    host_memory: float | None = None
    factor: float = field(default=1.0)
    """Measured over predicted GPU memory, from `dsrun plan --calibrate`."""

    def __post_init__(self) -> None:
        for flag, value, most in (
            ("--max-length", self.length, LONGEST),
            ("--max-source-length", self.source_length, LONGEST),
            ("--global-batch-size", self.global_batch, LARGEST_BATCH),
            ("--lora", self.lora, LARGEST_RANK),
        ):
            if value is not None and not 1 <= value <= most:
                raise UsageError(f"{flag} {value} makes no sense", fix=f"give a number from 1 to {most:,}")
        if self.preset not in SHARES:
            raise UsageError(f"there is no preset {self.preset!r}", fix=f"choose {', '.join(SHARES)}")
        if self.host_memory is not None and not 0 < self.host_memory < inf:
            raise UsageError(f"--host-memory {self.host_memory:g} makes no sense", fix="give GiB per node")
        if self.global_batch is not None and self.global_batch % self.cluster.world:
            below = self.global_batch // self.cluster.world * self.cluster.world
            either = f"{below} or {below + self.cluster.world}" if below else str(self.cluster.world)
            raise UsageError(
                f"global batch {self.global_batch} does not divide by {self.cluster.world} GPUs",
                fix=f"use --global-batch-size {either}",
            )

    def corrected(self, factor: float) -> PlanRequest:
        """The same question with a calibration's correction."""
        return replace(self, factor=factor)

    @property
    def budget(self) -> float:
        """Bytes of one GPU that the preset lets a run fill."""
        return SHARES[self.preset] * self.cluster.memory * 2**30

    @property
    def limit(self) -> float:
        """Bytes of one GPU that can be filled at all."""
        return PHYSICAL * self.cluster.memory * 2**30

    @property
    def host(self) -> float:
        """GiB of host memory per node, assumed where not given."""
        return USUAL_HOST * self.cluster.per_node if self.host_memory is None else self.host_memory

    @property
    def tokens(self) -> int:
        """Tokens of one sample that pass through the model."""
        return self.length + (self.source_length if self.model.seq2seq else 0)

    def work(self, micro_batch: int, *, stage: int, checkpointing: bool) -> Work:
        """One rank's micro batch. Plain DDP computes under autocast; DeepSpeed casts the model itself."""
        return Work(
            micro_batch=micro_batch,
            length=self.length,
            source_length=self.source_length if self.model.seq2seq else 0,
            width=4 if self.precision == "fp32" else 2,
            checkpointing=checkpointing,
            attention=self.attention,
            autocast=stage == 0 and self.precision != "fp32",
            adapters=self.lora,
        )


def default_precision(asked: str, model: Architecture, cluster: Cluster) -> Precision:
    """bf16 where the GPU computes in it (an unknown GPU is taken to), else fp16, or fp32 for what overflows in it."""
    if asked == "fp16" and family_of(model.family).overflows_in_fp16:
        raise UsageError(f"--precision fp16: {overflow_in_fp16(model.family)}", fix="use bf16 or fp32")
    if asked in ("bf16", "fp16", "fp32"):
        chosen: dict[str, Precision] = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}
        return chosen[asked]
    if cluster.model.has_bf16 or cluster.model.capability == (0, 0):
        return "bf16"
    return "fp32" if family_of(model.family).overflows_in_fp16 else "fp16"
