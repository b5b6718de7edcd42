"""Buffers that a rank holds beside states and activations, in bytes, and what torch's allocator cannot use again."""

from typing import NamedTuple

from dsrun.zero.generate.presets import BufferSizes
from dsrun.zero.memory.model.architecture import ModelShapes, ParameterGroups
from dsrun.zero.memory.rank.states import FP32, StateSharding

MIB = 2**20

CUDA_CONTEXT = 1330 * MIB
"""What a process takes beside torch's allocator after two ZeRO-2 steps: context, kernels, a communicator of one rank.
Measured on an H100 (driver 580, CUDA 13.0, torch 2.11; docs/benchmarks.md); the context alone is 0.6 GiB."""
NCCL_BUFFERS = 400 * MIB
"""More channels, of the communicators of a world of more than one rank; not measured."""
NVLS_BUFFERS = 1500 * MIB
"""The same where NVSwitches reduce (NCCL's NVLS: Hopper and later). Fitted to a published run of 8B on eight H200s with
rows of 8k tokens (docs/benchmarks.md)."""
FRAGMENTATION = 0.05
"""Share of what is allocated and freed in every step that torch's caching allocator cannot use again."""
GATHERING = 0.75
"""The same of ZeRO-3's gathered weights and buckets, of many sizes. Fitted to published runs of 8B on H200s
(docs/benchmarks.md), whose peak at 8k tokens it is most of."""
STEPPING = 0.33
"""The same of the flat gradients of the optimizer's step, which lie between activations and the moments that are made
after them: 2.3 GiB of 6.9 on an H100; also of gradients that come where activations have gone."""
TAKEN = 1.5
"""Of whole logits' 16-bit copy, that much of their fp32 copies: 2.3 to 3.1 of 3.9 to 4.6 GiB on an H200."""


class BufferBytes(NamedTuple):
    """Bytes on one GPU."""

    buckets: int
    gathered: int
    autocast: int
    context: int

    @property
    def total(self) -> int:
        return self.buckets + self.gathered + self.autocast + self.context


def buffers(
    model: ModelShapes, training: ParameterGroups, sharding: StateSharding, chosen: BufferSizes, *, checkpointing: bool,
    nvls: bool,
) -> BufferBytes:  # fmt: skip
    """The buffers of one rank.

    Its buckets are those of the reduction, and the largest gradient before it is copied into one. ZeRO-1 and 2 keep two
    to overlap (setup_buckets); ZeRO-3 keeps one and a copy that is cut up for the reduce-scatter (__avg_scatter_grads).
    """
    stage, width = sharding.stage, sharding.width
    casts = stage == 0 and sharding.precision != "fp32" and sharding.weights == FP32
    reduced = (2 if stage == 3 or chosen.overlap else 1) * chosen.reduce_bucket
    return BufferBytes(
        buckets=width * (reduced + max(training.trained)) if stage else 0,
        gathered=width * gathered_elements(model, training, chosen) if stage == 3 else 0,
        autocast=2 * _cast_elements(model, checkpointing=checkpointing) if casts else 0,
        context=CUDA_CONTEXT + (0 if sharding.world == 1 else NVLS_BUFFERS if nvls else NCCL_BUFFERS),
    )


def gathered_elements(model: ModelShapes, training: ParameterGroups, chosen: BufferSizes) -> int:
    """Parameters that ZeRO-3 has whole at a time, at most.

    The layer that runs, what is fetched ahead, and at the turn from forward to backward those that are used again
    within stage3_max_reuse_distance, counted there and back (partitioned_param_coordinator.py, __params_to_release)."""
    return min(training.parameters, model.largest_layer + chosen.prefetch + chosen.live // 2)


def _cast_elements(model: ModelShapes, *, checkpointing: bool) -> int:
    """Weights that torch.autocast keeps a 16-bit copy of until their backward pass; of one layer when recomputing."""
    kinds = ("linear", "experts", "head")
    layers = [sum(weight.elements for weight in block.weights if weight.kind in kinds) for block in model.blocks]
    tied = model.vocabulary * model.hidden if model.tied else 0
    if checkpointing:
        return tied + max(layers)
    return tied + sum(layers)
