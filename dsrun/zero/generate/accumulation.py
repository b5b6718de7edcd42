"""The format in which gradients are summed over accumulation steps.

DeepSpeed sums a bf16 model's gradients in bf16 unless data_types.grad_accum_dtype says otherwise. The error was
measured on engines of DeepSpeed 0.19.8, at stages 2 and 3, on two ranks with random batches
(tests/integration/test_bf16_sums.py).
"""

from __future__ import annotations

from bisect import bisect_right

from dsrun.messages import Message
from dsrun.zero.generate.presets import GIB

FROM_STEPS = 8
"""Accumulation steps from which on dsrun's configurations sum in fp32."""
MEASURED = {4: "0.27%", 8: "0.36%", 16: "0.48%", 64: "0.85%", 256: "1.57%"}
"""Norm of a bf16 sum's error over that of the fp32 sum, by accumulation steps."""
EXTRA_BYTES = 2
"""Per trained parameter, divided by the ranks: the sum is sharded at stages 2 and 3."""


def takes_fp32_sum(stage: int, offload_optimizer: str) -> bool:
    """Whether a fp32 sum costs two bytes a parameter, divided by the ranks, where the bf16 sum is kept.

    At stage 1 a bf16 model with a fp32 sum gets another optimizer, whose sum is not sharded (runtime/engine.py,
    _do_optimizer_sanity_check), and at stage 2 the sum of an offloaded optimizer stays on the GPU
    (runtime/zero/stage_1_and_2.py, _build_compact_grad_partition_buffer). NVMe has not been measured.
    """
    return (stage == 2 and offload_optimizer == "none") or (stage == 3 and offload_optimizer in ("none", "cpu"))


def error_after(steps: int) -> Message:
    """The error of a bf16 sum at the largest measured number of steps up to `steps`: "0.36% after 8 steps"."""
    known = list(MEASURED)
    number = known[max(0, bisect_right(known, steps) - 1)]
    return Message("{error} after {steps} steps", error=MEASURED[number], steps=number)


def memory_of_sum(parameters: int | None, ranks: int | None, offload_optimizer: str) -> Message:
    """What a fp32 sum takes beyond a bf16 one, for so many trained parameters and ranks where they are known."""
    place = Message("host memory" if offload_optimizer == "cpu" else "GPU memory")
    if parameters is None or ranks is None:
        return Message(
            "{bytes} more bytes of {place} per trained parameter, divided by the ranks", bytes=EXTRA_BYTES, place=place
        )
    gib = EXTRA_BYTES * parameters / ranks / GIB
    size = f"{gib:.1f} GiB" if gib >= 1 else f"{1024 * gib:.1f} MiB"
    return Message("{size} more {place} per rank", size=size, place=place)
