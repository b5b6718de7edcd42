"""The resident memory of one training process without a GPU: GPU and host states in one memory.

Used by `dsrun plan --calibrate` on a machine without GPU and by bench/memory.py. There is no CUDA context. glibc's heap
can hold a good deal more than is in use, unless MALLOC_MMAP_THRESHOLD_ is set: see docs/benchmarks.md.
"""

from __future__ import annotations

from dataclasses import replace

from dsrun.zero.memory.request import PlanRequest
from dsrun.zero.memory.strategy import Strategy, gpu

MIB = 2**20
BASELINE = 560 * MIB
"""Resident bytes of one `dsrun train` worker before it has a model: torch, transformers, datasets, DeepSpeed, gloo."""
HEAP = 0.02
"""Share of what is held that small blocks and their bookkeeping add."""


def resident(question: PlanRequest, strategy: Strategy, micro_batch: int, *, baseline: int = BASELINE) -> int:
    """Peak resident bytes of one CPU rank.

    Before it is sharded, a model of ZeRO-0 to 2 is whole in fp32 and then cast, which never exceeds what training
    itself takes; under ZeRO-3 it is built shard by shard.
    """
    peak = gpu(replace(question, factor=1.0), strategy, micro_batch)
    states = peak.states
    backward = peak.buffers.total - peak.buffers.context + peak.activations.peak
    held = states.gpu.total + states.host.total + max(backward, states.step)
    return int(baseline + held * (1 + HEAP))
