"""Which collectives are tested, with the values that they must give, and who is tested with whom, and when: every unit
alone, then in pairs, then all together. Pure.

A unit is a node with all its ranks; on one machine, where there is no network between nodes, it is a rank.

Bus bandwidth is that of nccl-tests, https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md: `algbw` is the
size of the operation over its time, and `busbw` is `algbw` times a factor that makes it comparable with the speed of
the hardware, whatever the number of ranks. The size of an all_gather and of a reduce_scatter is that of the large
buffer, which holds all ranks' parts. The time is the average over the ranks, their default."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

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


ALL_PAIRS_UP_TO = 32
"""With more units each meets those at distances 1, 2, 4 …: all pairs of 1,000 nodes would take an hour."""

PhaseKind = Literal["alone", "pairs", "all"]


@dataclass(frozen=True)
class CollectiveUnit:
    """`ranks` are global ranks, `members` the numbers of the processes of the doctor that have started them."""

    name: str
    ranks: tuple[int, ...]
    members: tuple[int, ...]


@dataclass(frozen=True)
class CollectivePhase:
    """Groups of units that are tested at the same time."""

    kind: PhaseKind
    number: int
    groups: tuple[tuple[CollectiveUnit, ...], ...]

    @property
    def operations(self) -> tuple[str, ...]:
        return ("all_reduce",) if self.kind == "pairs" else OPERATIONS


def units_of(members: Iterable[tuple[int, str, int]]) -> list[CollectiveUnit]:
    """The units of `members`: number, host and count of ranks of each, in the order of the ranks."""
    members = list(members)
    several = len({host for _, host, _ in members}) > 1
    found: dict[str, CollectiveUnit] = {}
    rank = 0
    for member, host, count in members:
        for own in range(rank, rank + count):
            name = host if several else f"rank {own}"
            before = found.get(name, CollectiveUnit(name, (), ()))
            found[name] = CollectiveUnit(name, (*before.ranks, own), tuple(dict.fromkeys((*before.members, member))))
        rank += count
    return list(found.values())


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """The pairs of `count` units, in rounds in which each unit is in one pair at most (the circle method)."""
    if count > ALL_PAIRS_UP_TO:
        return _neighbour_rounds(count)
    places: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    found = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        paired = zip(places[:half], reversed(places[half:]), strict=True)
        found.append([(min(a, b), max(a, b)) for a, b in paired if a is not None and b is not None])
        places = [places[0], places[-1], *places[1:-1]]
    return found


def _neighbour_rounds(count: int) -> list[list[tuple[int, int]]]:
    found: list[list[tuple[int, int]]] = []
    distance = 1
    while distance < count:
        pairs = [(unit, unit + distance) for unit in range(count - distance)]
        # Each unit has two neighbours at this distance: every second stretch of `distance` units begins a pair.
        for parity in (0, 1):
            chosen = [pair for pair in pairs if pair[0] // distance % 2 == parity]
            if chosen:
                found.append(chosen)
        distance *= 2
    return found


def apart(group: Sequence[CollectiveUnit], unfit: Collection[frozenset[int]]) -> bool:
    """Whether two members of the group are one of the `unfit` pairs, which cannot connect."""
    members = {member for unit in group for member in unit.members}
    return any(pair <= members for pair in unfit)


def cover(pairs: Iterable[frozenset[int]]) -> list[int]:
    """A few numbers of which each of `pairs` has one: who is in most of the pairs that fail, then in most of the rest.

    Of two that are in as many, the higher one: the first node also runs the job's script."""
    left = list(pairs)
    found = []
    while left:
        counts = Counter(number for pair in left for number in pair)
        worst = max(counts, key=lambda number: (counts[number], number))
        found.append(worst)
        left = [pair for pair in left if worst not in pair]
    return found
