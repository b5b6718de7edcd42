"""What the presets change, the sizes that follow from the model's width and the GPU's memory, and the format in which
gradients are summed over accumulation steps.

DeepSpeed sums a bf16 model's gradients in bf16 unless data_types.grad_accum_dtype says otherwise. The error was
measured on engines of DeepSpeed 0.19.8, at stages 2 and 3, on two ranks with random batches
(tests/integration/test_bf16_sums.py)."""

from typing import TYPE_CHECKING, NamedTuple

from dsrun.datafiles import toml_beside
from dsrun.findings.finding import text_of
from dsrun.messages import Message

if TYPE_CHECKING:
    from dsrun.hardware.gpu_facts import GpuModel

# Below this many elements a bucket costs more in launches than it hides; above, its buffer eats GPU memory.
SMALLEST_BUCKET = 5_000_000
# transformers' own example, ds_config_zero2.json, has 2e8.
LARGEST_BUCKET = 200_000_000
# With overlap_comm the reduce and all-gather buckets take 4.5 times their size
# (https://www.deepspeed.ai/docs/config-json, overlap_comm), two bytes an element.
BYTES_PER_BUCKET_ELEMENT = 9
BYTES_PER_PARAMETER = 2
# Sizes for an unknown GPU are those of one of this memory, today's most common accelerator.
USUAL_MEMORY_GIB = 80
# Width of a 7B to 8B model, for `--for deepspeed` without --model: nothing fills an "auto" there.
USUAL_WIDTH = 4096
# Elements of one of the buffers through which ZeRO-3's parameters come from NVMe: DeepSpeed's default.
NVME_PARAM_BUFFER = 100_000_000
GIB = 2**30
MILLION = 1_000_000
DIGITS = 2
FROM_STEPS = 8
"""Accumulation steps from which on dsrun's configurations sum in fp32."""
SUM_ERRORS = {4: "0.27%", 8: "0.36%", 16: "0.48%", 64: "0.85%", 256: "1.57%"}
"""Norm of a bf16 sum's error over that of the fp32 sum, by accumulation steps."""
EXTRA_BYTES = 2
"""Per trained parameter, divided by the ranks: the sum is sharded at stages 2 and 3."""


class SpeedPreset(NamedTuple):
    """How much a configuration spends on speed.

    `bucket` and `persistence` are factors to what the Trainer's "auto" gives; `prefetch` is the share of a bucket
    that ZeRO-3 fetches ahead. `bucket_share` and `live_share` are shares of the GPU's memory that the buckets and
    ZeRO-3's gathered parameters may take. `sub_group` counts elements."""

    bucket: float
    persistence: float
    prefetch: float
    bucket_share: float
    live_share: float
    sub_group: int
    overlap_comm: bool
    pin_memory: bool
    activation_checkpointing: bool
    why: str


PRESETS = {name: SpeedPreset(**values) for name, values in toml_beside(__file__).items()}


def memory_of(gpu: "GpuModel | None") -> int:
    """The GPU's memory in GiB; the usual one's where it is not known."""
    return (gpu.memory if gpu else None) or USUAL_MEMORY_GIB


def reduce_bucket(preset: SpeedPreset, hidden_size: int, gpu: "GpuModel | None") -> int:
    """Elements of one reduce bucket; even, as DeepSpeed's ZeRO-1 and 2 want their all-gather bucket.

    (deepspeed/runtime/zero/stage_1_and_2.py: "allgather_bucket_size must be a multiple of
    nccl_start_alignment_factor", which is 2.)"""
    # The width squared, and ten times the width for parameters that stay whole, are what "auto" becomes
    # (trainer_config_finalize in transformers/integrations/deepspeed.py).
    wanted = max(int(preset.bucket * hidden_size * hidden_size), SMALLEST_BUCKET)
    # An aggressive bucket may go further than the bound that has served the Trainer's users.
    most = int(LARGEST_BUCKET * max(1.0, preset.bucket / 2))
    if gpu and gpu.memory:
        fits = int(gpu.memory * GIB * preset.bucket_share / BYTES_PER_BUCKET_ELEMENT)
        most = max(min(most, _rounded(fits)), SMALLEST_BUCKET)
    size = min(wanted, most)
    return size + size % 2


class BufferSizes(NamedTuple):
    """The sizes, in elements, that go into DeepSpeed's JSON for a model, GPU and preset.

    `prefetch` is what ZeRO-3 fetches ahead, `persistence` up to what size its parameters stay whole (norms and biases,
    at 10 times the width), `live` the most it has gathered at a time. `overlap`: gradients are reduced beside the
    backward pass; `pinned`: offloaded states lie in page-locked memory."""

    reduce_bucket: int
    prefetch: int
    persistence: int
    live: int
    overlap: bool
    sub_group: int
    pinned: bool


def sizes(preset: str, hidden: int, gpu: "GpuModel | None") -> BufferSizes:
    """What a preset means for a model `hidden` elements wide."""
    chosen = PRESETS[preset]
    bucket = reduce_bucket(chosen, hidden, gpu)
    return BufferSizes(
        reduce_bucket=bucket,
        prefetch=int(chosen.prefetch * bucket),
        persistence=int(10 * chosen.persistence * hidden),
        live=_rounded(int(memory_of(gpu) * GIB * chosen.live_share / BYTES_PER_PARAMETER)),
        overlap=chosen.overlap_comm,
        sub_group=chosen.sub_group,
        pinned=chosen.pin_memory,
    )


def nvme_buffer(largest: int, world: int) -> int:
    """Elements of one NVMe parameter buffer: DeepSpeed's default, or a rank's share of the largest parameter.

    A share that is larger than the buffer stops DeepSpeed when the model is built
    (deepspeed/runtime/swap_tensor/partitioned_param_swapper.py, get_buffer: "More elements … than buffer size")."""
    share = -(-largest // world)
    return max(NVME_PARAM_BUFFER, -(-share // MILLION) * MILLION)


def _rounded(number: int) -> int:
    """Down to two digits: a size is a choice, and 190000000 says so."""
    unit: int = 10 ** max(0, len(str(number)) - DIGITS)
    return number // unit * unit


def takes_fp32_sum(stage: int, offload_optimizer: str) -> bool:
    """Whether a fp32 sum costs two bytes a parameter, divided by the ranks, where the bf16 sum is kept.

    At stage 1 a bf16 model with a fp32 sum gets another optimizer, whose sum is not sharded (runtime/engine.py,
    _do_optimizer_sanity_check), and at stage 2 the sum of an offloaded optimizer stays on the GPU
    (runtime/zero/stage_1_and_2.py, _build_compact_grad_partition_buffer). NVMe has not been measured."""
    return (stage == 2 and offload_optimizer == "none") or (stage == 3 and offload_optimizer in ("none", "cpu"))


def error_after(steps: int) -> Message:
    """The error of a bf16 sum at the largest measured number of steps up to `steps`: "0.36% after 8 steps"."""
    number = max((each for each in SUM_ERRORS if each <= steps), default=min(SUM_ERRORS))
    return text_of("bf16_sum.error", error=SUM_ERRORS[number], steps=number)


def memory_of_sum(parameters: int | None, ranks: int | None, offload_optimizer: str) -> Message:
    """What a fp32 sum takes beyond a bf16 one, for so many trained parameters and ranks where they are known."""
    place = text_of("bf16_sum.host" if offload_optimizer == "cpu" else "bf16_sum.gpu")
    if parameters is None or ranks is None:
        return text_of("bf16_sum.more_bytes", bytes=EXTRA_BYTES, place=place)
    gib = EXTRA_BYTES * parameters / ranks / GIB
    size = f"{gib:.1f} GiB" if gib >= 1 else f"{1024 * gib:.1f} MiB"
    return text_of("bf16_sum.more", size=size, place=place)
