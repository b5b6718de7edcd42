"""The collectives that are tested: the values that they must give, and bus bandwidth as nccl-tests define it.

https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md: `algbw` is the size of the operation over its time,
and `busbw` is `algbw` times a factor that makes it comparable with the speed of the hardware, whatever the number of
ranks. The size of an all_gather and of a reduce_scatter is that of the large buffer, which holds all ranks' parts. The
time is the average over the ranks, their default.
"""

from collections.abc import Mapping, Sequence

OPERATIONS = ("broadcast", "all_reduce", "all_gather", "reduce_scatter")

PERIOD = 13
"""The values of a buffer repeat after so many elements, so that a shifted buffer is noticed."""
_RANKS_APART = 64
"""So many ranks have different values; a sum over 10,000 ranks is exact in fp32 then (below 2^24)."""


def bus_factor(operation: str, ranks: int) -> float:
    """What algbw is multiplied by for `ranks` ranks."""
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if operation in ("all_gather", "reduce_scatter"):
        return (ranks - 1) / ranks
    return 1.0


def bus_bandwidth(operation: str, ranks: int, size: int, seconds: Sequence[float]) -> float:
    """busbw in GB/s (10^9 bytes) of an operation on `size` bytes; `seconds` has one time per rank."""
    mean = sum(seconds) / len(seconds)
    return bus_factor(operation, ranks) * size / mean / 1e9 if mean > 0 else 0.0


def rank_factor(rank: int) -> int:
    """What a rank multiplies the values of its buffer by."""
    return 1 + rank % _RANKS_APART


def summed_factor(ranks: int) -> int:
    """The factor of the sum over all ranks."""
    return sum(map(rank_factor, range(ranks)))


def average_bandwidths(measured: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, float]:
    """busbw by operation in GB/s, from what each rank of one group has measured: {operation: {seconds, size}}."""
    found = {}
    for operation in OPERATIONS:
        each = [own[operation] for own in measured if operation in own]
        if each and len(each) == len(measured):
            seconds = [own["seconds"] for own in each]
            found[operation] = bus_bandwidth(operation, len(each), int(each[0]["size"]), seconds)
    return found
