"""Model states per rank: parameters, gradients, master weights and optimizer states, and where they live.

What DeepSpeed 0.19.8 allocates was read in its source and measured on real engines; the functions below name the
places. Bytes per element: two for bf16 and fp16, four for fp32; Adam keeps two fp32 moments. ZeRO's stages are those of
Rajbhandari et al. 2020 (https://arxiv.org/abs/1910.02054)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal, NamedTuple

from dsrun.zero.generate.presets import NVME_PARAM_BUFFER
from dsrun.zero.memory.model.architecture import ParameterGroups

StateOffload = Literal["none", "optimizer", "cpu", "nvme"]
"""Where states are offloaded to; optimizer: those of the optimizer to host memory, ZeRO-3 parameters stay."""
StatePrecision = Literal["bf16", "fp16", "fp32"]

FP32 = 4
MOMENTS = 2
"""Adam's: the running means of the gradient and of its square."""
NVME_BUFFERS = 4
"""Swap buffers of an offloaded optimizer, as dsrun's configurations have it (offload_optimizer.buffer_count)."""
NVME_PARAM_BUFFERS = 5
"""Swap buffers for parameters, as dsrun's configurations have it (offload_param.buffer_count)."""
NVME_KEPT = 1_000_000_000
"""Parameter elements per rank that stay in host memory all the same (offload_param.max_in_cpu, the default)."""
SUB_GROUP = 1_000_000_000
"""Elements that ZeRO-3's optimizer steps at a time (sub_group_size)."""


@dataclass(frozen=True, kw_only=True)
class StateSharding:
    """How the states are spread: ZeRO stage, where offloaded ones live, over how many ranks, in which precision."""

    stage: int
    offload: StateOffload
    world: int
    precision: StatePrecision
    accumulates: bool = True
    """Whether a step has several micro batches."""
    sums_in_fp32: bool = False
    """Whether gradients are summed in fp32 where parameters are in 16 bits (dsrun.zero.generate.presets)."""
    bf16_master: bool = False
    """Whether master weights are in bf16 (bf16_master_weights_and_grads); planned on the GPU alone."""
    persistence: int = 0
    """Elements up to which a ZeRO-3 parameter stays whole on every rank."""
    sub_group: int = SUB_GROUP
    moments: float = MOMENTS * FP32
    """Bytes of the optimizer's states per trained parameter (dsrun.zero.memory.rank.optimizers)."""
    weights: int = FP32
    """Bytes of a weight as it is loaded, for plain DDP, which trains it so (--weights-dtype)."""
    nvme_buffer: int = NVME_PARAM_BUFFER
    """Elements of one buffer through which parameters come from NVMe."""

    @property
    def master(self) -> int:
        """Bytes of an element of the master copy, and of the gradient that steps it (_configure_master_weights)."""
        return 2 if self.bf16_master else FP32

    @property
    def width(self) -> int:
        """Bytes of one parameter as the forward pass uses it."""
        return FP32 if self.precision == "fp32" else 2

    @property
    def flat_gradient(self) -> int:
        """Bytes per element that the step takes: gradients are copied into one flat tensor, and that is cast to the
        master's dtype, beside it (stage_1_and_2.py, step; stage3.py, _prepare_fp32_grad_for_sub_group)."""
        return self.width + (self.master if self.master != self.width else 0)

    def optimizer(self, elements: int) -> int:
        """Bytes of the optimizer's states for so many trained parameters."""
        return int(self.moments * elements)


class StateBytes(NamedTuple):
    """Bytes of one rank's states in one kind of memory.

    `staging` are buffers that copies between the kinds of memory go through."""

    parameters: int = 0
    gradients: int = 0
    master: int = 0
    optimizer: int = 0
    staging: int = 0

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.master + self.optimizer + self.staging


class RankStates(NamedTuple):
    """One rank's states on the GPU, in host memory and on NVMe, in bytes.

    `step` are bytes that exist on the GPU only while the optimizer steps, when activations are gone. `pinned` are the
    host's page-locked blocks, in bytes each: torch's pinning allocator rounds them up to powers of two."""

    gpu: StateBytes
    host: StateBytes = StateBytes()
    nvme: StateBytes = StateBytes()
    step: int = 0
    pinned: tuple[int, ...] = ()

    @property
    def host_bytes(self) -> int:
        """Host memory with the pinned blocks as large as the allocator makes them."""
        return self.host.total - sum(self.pinned) + sum(rounded(block) for block in self.pinned)


def rounded(block: int) -> int:
    """The size torch's pinned-memory allocator gives a block: the next power of two (CachingHostAllocator)."""
    return 1 << (block - 1).bit_length() if block > 0 else 0


def states(training: ParameterGroups, sharding: StateSharding, *, rank: int | None = None) -> RankStates:
    """One rank's states; of the fullest rank when `rank` is None."""
    if sharding.stage == 0:
        return _replicated(training, sharding)
    if sharding.stage == 3:
        return _sharded(training, sharding)
    return _partitioned(training, sharding, rank)


def _replicated(training: ParameterGroups, sharding: StateSharding) -> RankStates:
    """`dsrun train --zero 0`: plain DDP, over fp32 weights unless --weights-dtype says otherwise; bf16 is
    torch.autocast's, which casts as it computes.

    DDP's reducer keeps a second set of gradients in its buckets, as the Trainer leaves gradient_as_bucket_view off."""
    gradients = sharding.weights * training.trainable
    return RankStates(
        gpu=StateBytes(
            parameters=sharding.weights * training.parameters,
            gradients=gradients,
            optimizer=sharding.optimizer(training.trainable),
            staging=gradients if sharding.world > 1 else 0,
        )
    )


# ZeRO-1 and 2


def partition(group: Sequence[int], world: int) -> int:
    """Elements of one rank's share of a parameter group, padded to an even number each.

    (stage_1_and_2.py: flatten_dense_tensors_aligned to nccl_start_alignment_factor 2 × world size.)"""
    return ceil(sum(group) / (2 * world)) * 2


def round_robin(group: Sequence[int], world: int) -> list[int]:
    """The order in which round_robin_gradients lays a group's tensors out: every world-th one together."""
    return [size for start in range(min(world, len(group))) for size in group[start::world]]


def owned(group: Sequence[int], sharding: StateSharding, rank: int | None) -> int:
    """Elements of the whole tensors that a rank's share touches: their gradients stay until the step.

    A tensor that lies across two shares is held whole by both ranks. `rank` None: the most any rank holds. dsrun's
    configurations deal tensors out in turn (round_robin_gradients) where gradients are copied to the host."""
    world = sharding.world
    share = partition(group, world)
    # Of the ranks that a tensor reaches, all but the first and the last hold nothing else.
    held: Counter[int] = Counter()
    end = 0
    for size in round_robin(group, world) if sharding.offload != "none" else group:
        start, end = end, end + size
        first, last = start // share, min((end - 1) // share, world - 1)
        reached = {first, last}
        if rank is not None and first <= rank <= last:
            reached.add(rank)
        for each in reached:
            held[each] += size
    return max(held.values()) if rank is None else held[rank]


def _partitioned(training: ParameterGroups, sharding: StateSharding, rank: int | None) -> RankStates:
    width, world = sharding.width, sharding.world
    shares = [partition(group, world) for group in training.groups]
    share = sum(shares)
    whole = share * world
    held = width * sum(owned(group, sharding, rank) for group in training.groups)
    parameters = width * (whole + sum(training.frozen))
    # ZeRO-1 reduces at the end of a step; until then every rank accumulates all gradients.
    gradients = width * whole if sharding.stage == 1 and sharding.accumulates else held
    if sharding.sums_in_fp32:  # only this rank's share (_build_compact_grad_partition_buffer)
        gradients = FP32 * share
    # The master copy exists in fp32 too: single_partition_of_fp32_groups is a clone.
    master, moments = sharding.master * share, sharding.optimizer(share)
    if sharding.offload == "none":
        # A sum in fp32 is flat already.
        return RankStates(
            gpu=StateBytes(parameters=parameters, gradients=gradients, master=master, optimizer=moments),
            step=0 if sharding.sums_in_fp32 else sharding.flat_gradient * max(shares),
        )
    largest = width * max(training.trained)
    kept = gradients if sharding.stage == 1 and sharding.accumulates else 0
    accumulated = held if sharding.stage == 2 and sharding.accumulates else 0
    blocks = [FP32 * each for each in shares for _ in ("master", "gradient")] + [width * each for each in shares]
    return RankStates(
        gpu=StateBytes(parameters=parameters, gradients=kept, staging=largest),
        host=StateBytes(
            gradients=FP32 * share + accumulated, master=master, optimizer=moments, staging=width * share + largest
        ),
        pinned=(*blocks, largest),
    )


# ZeRO-3


def _shares(sizes: Sequence[int], world: int) -> int:
    """Elements of one rank's shares of tensors that are each padded to the world size."""
    return sum(-(-size // world) for size in sizes)


def _small(sizes: Sequence[int], sharding: StateSharding) -> int:
    return sum(size for size in sizes if size <= sharding.persistence)


def _sharded(training: ParameterGroups, sharding: StateSharding) -> RankStates:
    width, world = sharding.width, sharding.world
    trained, frozen = _shares(training.trained, world), _shares(training.frozen, world)
    # peft makes adapters in fp32, and DeepSpeed casts nothing that zero.Init was at work on before.
    own = FP32 if training.adapters else width
    # Small parameters are gathered once and stay (stage3_param_persistence_threshold).
    whole = own * _small(training.trained, sharding) + width * _small(training.frozen, sharding)
    parameters = own * trained + width * frozen
    gradients = (FP32 if sharding.sums_in_fp32 else width) * trained
    # A bf16 master copy is the parameters themselves (stage3.py, _create_fp32_partitions).
    master = 0 if sharding.bf16_master else FP32 * trained
    moments = sharding.optimizer(trained)
    if sharding.offload == "none":
        return RankStates(
            gpu=StateBytes(parameters=parameters + whole, gradients=gradients, master=master, optimizer=moments),
            step=(FP32 if sharding.sums_in_fp32 else sharding.flat_gradient) * min(trained, sharding.sub_group),
        )
    if sharding.offload in ("cpu", "optimizer"):
        kept = parameters if sharding.offload == "optimizer" else 0
        steps = [FP32 * each for each in sub_groups(trained, sharding.sub_group)]
        return RankStates(
            gpu=StateBytes(parameters=whole + kept),
            host=StateBytes(
                parameters=parameters - kept, gradients=gradients + FP32 * trained, master=master, optimizer=moments
            ),
            pinned=(0 if kept else width * trained, gradients, *steps),
        )
    return _on_nvme(trained, frozen, whole, sharding)


def sub_groups(elements: int, size: int) -> list[int]:
    """The pieces ZeRO-3's optimizer works on."""
    full, rest = divmod(elements, size)
    return [size] * full + ([rest] if rest else [])


def _on_nvme(trained: int, frozen: int, whole: int, sharding: StateSharding) -> RankStates:
    """Optimizer and parameters on NVMe: the host keeps gradients, swap buffers and the first parameters."""
    width = sharding.width
    kept = min(trained, NVME_KEPT)
    buffers = NVME_PARAM_BUFFERS * width * sharding.nvme_buffer
    swapped = NVME_BUFFERS * FP32 * min(trained, sharding.sub_group)
    return RankStates(
        gpu=StateBytes(parameters=whole),
        host=StateBytes(parameters=width * kept, gradients=width * trained, staging=buffers + swapped),
        nvme=StateBytes(
            parameters=width * (trained - kept + frozen),
            gradients=FP32 * trained,
            master=FP32 * trained,
            optimizer=sharding.optimizer(trained),
        ),
        pinned=(width * kept, width * trained),
    )


# checkpoints


def checkpoint_bytes(training: ParameterGroups, sharding: StateSharding) -> int:
    """One checkpoint of all ranks on disk: weights, master copy and moments.

    ZeRO stages 1 to 3 write the weights twice, once for DeepSpeed and once for from_pretrained; under LoRA only the
    adapters. Plain DDP writes the weights once, in the dtype they were loaded in."""
    count = training.trainable
    saved = count if training.frozen and count < sum(training.frozen) else training.parameters
    if sharding.stage == 0:
        return sharding.weights * saved + sharding.optimizer(count)
    return 2 * sharding.width * saved + sharding.master * count + sharding.optimizer(count)
