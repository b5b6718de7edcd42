"""Which rank holds the others up: a slow GPU, a busy processor, a loader on a slow disk; from the times of all ranks.

The ranks wait for one another in every step, so each step takes all of them as long as the slowest. What tells the
straggler is its own time, in data and computing without waiting."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dsrun.runs.node_status import NodeStatus, RankProgress

SLOWER_BY = 0.15
"""A rank whose own time exceeds the median of the others' by this share is slow."""
# And three quarters of its steps this one: at a noise of 10% no rank of equal ones is named, and 94 of 100 that are a
# fifth slower; at 20% noise, 40 of 100.
_MOSTLY_BY = 0.06
# Half of that: one that hovers around the limit is not named again and again.
RECOVERED_BELOW = 0.07
CHRONIC_STALLS = 3
"""So many stalls of one rank in an attempt are no accident."""


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """Rank `rank` of `host` holds the others up. `slowdown` is its own time over the others', 1.2 for a fifth more; of
    a stall, that of the long step over its own usual one. `stalls` are those of the rank so far, `lost_s` the seconds
    by which those since the look before held all up."""

    rank: int
    host: str
    gpu: str | None
    step: int
    kind: Literal["slow", "stall"]
    slowdown: float
    message: str
    stalls: int = 0
    lost_s: float | None = None

    @property
    def is_chronic(self) -> bool:
        """Whether it is more than an accident."""
        return self.kind == "slow" or self.stalls >= CHRONIC_STALLS


@dataclass(frozen=True, kw_only=True)
class _Placed:
    """A rank in training with the times of at least 30 steps, its host and its GPU; `new_stalls` since the look before,
    together `new_stalled_s` seconds."""

    progress: RankProgress
    host: str
    gpu: str | None
    own_s: float
    low_s: float
    new_stalls: int
    new_stalled_s: float


class StragglerDetector:
    """Names each slow rank once until it has recovered, and counts stalls; `update` takes the newest status of all
    nodes again and again."""

    def __init__(self) -> None:
        self._named: set[int] = set()
        self._stalls: dict[int, tuple[int, float]] = {}
        self._attempt = -1

    def update(self, nodes: Sequence[NodeStatus]) -> list[Straggler]:
        """The ranks that have become slow, or stalled, since the last look.

        A rank is slow where its median step exceeds the others' by SLOWER_BY, and most of its last 30 steps are longer
        than theirs: one long step, or a few, are not enough."""
        attempt = max((node.attempt for node in nodes), default=0)
        if attempt != self._attempt:
            self._attempt, self._named, self._stalls = attempt, set(), {}
        ranks = list(self._placed([node for node in nodes if node.attempt == attempt]))
        found: list[Straggler] = []
        for each in ranks:
            others = [other for other in ranks if other is not each]
            usual = statistics.median(other.own_s for other in others) if others else 0.0
            if usual <= 0:
                continue
            # Not where those of the others stalled as well, as when the file server does.
            if each.new_stalls > 0 and statistics.median(other.new_stalls for other in others) < each.new_stalls:
                found.append(_stall(each))
            if each.own_s < usual * (1 + RECOVERED_BELOW):
                self._named.discard(each.progress.rank)
            elif (
                each.progress.rank not in self._named
                and each.own_s > usual * (1 + SLOWER_BY)
                and each.low_s > usual * (1 + _MOSTLY_BY)
            ):
                self._named.add(each.progress.rank)
                found.append(_slow(each, others, usual))
        return found

    def _placed(self, nodes: Sequence[NodeStatus]) -> Iterator[_Placed]:
        for node in nodes:
            for place, rank in enumerate(sorted(node.ranks, key=lambda each: each.rank)):
                if rank.phase != "training" or rank.own_s is None or rank.own_low_s is None:
                    continue
                known = node.gpus[place] if len(node.gpus) >= len(node.ranks) else None
                gpu = f"GPU {known.index} ({known.name})" if known else None
                stalls, seconds = self._stalls.get(rank.rank, (0, 0.0))
                self._stalls[rank.rank] = (rank.stalls, rank.stalled_s)
                yield _Placed(
                    progress=rank, host=node.host, gpu=gpu, own_s=rank.own_s, low_s=rank.own_low_s,
                    new_stalls=rank.stalls - stalls, new_stalled_s=rank.stalled_s - seconds,
                )  # fmt: skip


def _slow(each: _Placed, others: Sequence[_Placed], usual: float) -> Straggler:
    slowdown = each.own_s / usual
    data = statistics.median(other.progress.data_s or 0.0 for other in others)
    # Where most of the excess lies.
    in_data = (each.progress.data_s or 0.0) - data > (each.own_s - usual) / 2
    what = "waiting for data" if in_data else "computing"
    # Its figures are within what a terminal of 80 columns shows of an event.
    message = (
        f"rank {each.progress.rank} takes {each.own_s:.3g} s a step, {slowdown:.2f} × the others' {usual:.3g} s, "
        f"without waiting: the excess is in {what} ({_where(each)})"
    )
    return _straggler(each, "slow", slowdown, message)


def _stall(each: _Placed) -> Straggler:
    stalls, lost = each.progress.stalls, each.new_stalled_s
    often = f", {stalls} times so far ({each.progress.stalled_s:.3g} s)" if stalls > 1 else ""
    message = f"rank {each.progress.rank} stalled for {lost:.3g} s{often} ({_where(each)})"
    return _straggler(each, "stall", 1 + lost / each.new_stalls / each.own_s, message, stalls=stalls, lost_s=lost)


def _where(each: _Placed) -> str:
    return f"{each.host}, {each.gpu}" if each.gpu else each.host


def _straggler(
    each: _Placed, kind: Literal["slow", "stall"], slowdown: float, message: str, **stalls: Any
) -> Straggler:
    return Straggler(
        rank=each.progress.rank, host=each.host, gpu=each.gpu, step=each.progress.step, kind=kind,
        slowdown=round(slowdown, 3), message=message, **stalls,
    )  # fmt: skip
