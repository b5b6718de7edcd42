"""How many workers this machine runs, and on what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dsrun.errors import UsageError


@dataclass(frozen=True)
class Topology:
    """`workers` processes on this machine, one per GPU or, on CPU, sharing `cores`."""

    workers: int
    device: Literal["cuda", "cpu"]
    cores: int

    @property
    def threads(self) -> int:
        """Compute threads per worker on a CPU run."""
        return max(1, self.cores // self.workers)


def decide(*, nproc: int | None, visible_gpus: int, cores: int, use_cpu: bool) -> Topology:
    """One worker per visible GPU unless `nproc` says otherwise; on CPU `nproc` workers, by default one.

    Raises UsageError where more workers than visible GPUs are asked for.
    """
    if visible_gpus and not use_cpu:
        if nproc is not None and nproc > visible_gpus:
            seen = f"{visible_gpus} GPU{'s are' if visible_gpus > 1 else ' is'} visible"
            raise UsageError(
                f"--nproc {nproc}: only {seen}",
                fix=f"use --nproc {visible_gpus}, or check CUDA_VISIBLE_DEVICES; --use-cpu trains without GPUs",
            )
        return Topology(nproc or visible_gpus, "cuda", cores)
    return Topology(nproc or 1, "cpu", cores)
