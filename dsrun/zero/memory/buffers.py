"""What a rank's GPU holds besides model states and activations: buckets, gathered parameters, CUDA's own memory."""

from __future__ import annotations

from dataclasses import dataclass

from dsrun.hardware.gpus import GpuModel
from dsrun.zero.generate import presets
from dsrun.zero.memory.model.architecture import Architecture
from dsrun.zero.memory.model.lora import Training
from dsrun.zero.memory.states import Sharding

GIB = 2**30
MIB = 2**20

CUDA_CONTEXT = 600 * MIB
"""Driver context, loaded kernels and cuBLAS workspaces of one process; 450 to 700 MiB on Ampere and Hopper."""
NCCL_BUFFERS = 400 * MIB
"""Channels of the communicators of a world of more than one rank."""
FRAGMENTATION = 0.05
"""Share of what is allocated and freed in every step that torch's caching allocator cannot use again."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes, in elements, that `dsrun config` writes into DeepSpeed's JSON for this model, GPU and preset.

    `overlap`: gradients are reduced beside the backward pass; `pinned`: offloaded states lie in page-locked memory.
    """

    reduce_bucket: int
    prefetch: int
    persistence: int
    live: int
    overlap: bool
    sub_group: int
    pinned: bool


@dataclass(frozen=True, kw_only=True)
class Buffers:
    """Bytes on one GPU."""

    buckets: int
    gathered: int
    autocast: int
    context: int

    @property
    def total(self) -> int:
        return self.buckets + self.gathered + self.autocast + self.context


def sizes(preset: str, hidden: int, gpu: GpuModel | None) -> Sizes:
    """What the generator chooses for a model `hidden` elements wide."""
    chosen = presets.PRESETS[preset]
    bucket = presets.reduce_bucket(chosen, hidden, gpu)
    return Sizes(
        reduce_bucket=bucket,
        prefetch=presets.prefetch_bucket(chosen, bucket),
        persistence=presets.persistence_threshold(chosen, hidden),
        live=presets.live_parameters(chosen, gpu),
        overlap=chosen.overlap_comm,
        sub_group=chosen.sub_group,
        pinned=chosen.pin_memory,
    )


def buffers(
    model: Architecture, training: Training, sharding: Sharding, chosen: Sizes, *, checkpointing: bool
) -> Buffers:
    """The buffers of one rank."""
    context = CUDA_CONTEXT + (NCCL_BUFFERS if sharding.world > 1 else 0)
    buckets = gathered = autocast = 0
    if sharding.stage == 0:
        if sharding.precision != "fp32":
            autocast = 2 * _cast_elements(model, checkpointing=checkpointing)
    else:
        buckets = _buckets(training, sharding, chosen)
    if sharding.stage == 3:
        gathered = sharding.width * gathered_elements(model, training, chosen)
    return Buffers(buckets=buckets, gathered=gathered, autocast=autocast, context=context)


def _buckets(training: Training, sharding: Sharding, chosen: Sizes) -> int:
    """Reduce buckets, and the largest gradient before it is copied into one.

    ZeRO-1 and 2 keep two buckets to overlap (setup_buckets); ZeRO-3 keeps one and a copy that is cut up for the
    reduce-scatter (__avg_scatter_grads).
    """
    count = 2 if sharding.stage == 3 or chosen.overlap else 1
    return sharding.width * (count * chosen.reduce_bucket + max(training.trained))


def gathered_elements(model: Architecture, training: Training, chosen: Sizes) -> int:
    """Parameters that ZeRO-3 has whole at a time, at most.

    The layer that runs, what is fetched ahead, and at the turn from forward to backward those that are used again
    within stage3_max_reuse_distance, counted there and back (partitioned_param_coordinator.py, __params_to_release).
    """
    return min(training.parameters, model.largest_layer + chosen.prefetch + chosen.live // 2)


def _cast_elements(model: Architecture, *, checkpointing: bool) -> int:
    """Weights that torch.autocast keeps a 16-bit copy of until their backward pass; of one layer when recomputing."""
    kinds = ("linear", "experts", "head")
    layers = [
        (block.repeat, sum(weight.elements for weight in block.weights if weight.kind in kinds))
        for block in model.blocks
    ]
    tied = model.vocabulary * model.hidden if model.tied else 0
    if checkpointing:
        return tied + max(elements for _, elements in layers)
    return tied + sum(repeat * elements for repeat, elements in layers)
