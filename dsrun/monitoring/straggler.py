"""Which rank holds the others up: a slow GPU, a busy processor, a loader on a slow disk; from the times of all ranks.

The ranks wait for one another in every step, so each step takes all of them as long as the slowest. What tells the
straggler is its own time, in data and computing without waiting.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from dsrun.machine.gpu_samples import GpuSample
from dsrun.runs.node_status import NodeStatus, RankProgress

SLOWER_BY = 0.15
"""A rank whose own time exceeds the median of the others' by this share is slow."""
# Half of that: one that hovers around the limit is not named again and again.
RECOVERED_BELOW = 0.07
STALL_TIMES = 5.0
"""A single step stalled that took so many times the usual own time, and so many seconds longer."""
STALL_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """Rank `rank` of `host` holds the others up. `slowdown` is its own time over the others', 1.2 for a fifth more; of
    a stall, that of its longest step."""

    rank: int
    host: str
    gpu: str | None
    step: int
    kind: Literal["slow", "stall"]
    slowdown: float
    message: str


@dataclass(frozen=True, kw_only=True)
class _Placed:
    """A rank in training with the times of at least 30 steps, its host and its GPU."""

    progress: RankProgress
    host: str
    gpu: str | None
    own_s: float
    low_s: float
    max_s: float


class StragglerDetector:
    """Names each rank once until it has recovered; `update` takes the newest status of all nodes again and again."""

    def __init__(self) -> None:
        self._named: set[tuple[int, str]] = set()
        self._attempt = -1

    def update(self, nodes: Sequence[NodeStatus]) -> list[Straggler]:
        """The ranks that have become slow, or stalled, since the last look.

        A rank is slow where three quarters of its last 30 steps took it longer than SLOWER_BY allows: one long step,
        or a few, are not enough.
        """
        attempt = max((node.attempt for node in nodes), default=0)
        if attempt != self._attempt:
            self._attempt, self._named = attempt, set()
        ranks = list(_placed([node for node in nodes if node.attempt == attempt]))
        found = []
        for each in ranks:
            others = [other for other in ranks if other is not each]
            if others:
                found += [straggler for straggler in _judge(each, others) if self._is_unnamed(straggler)]
                self._forget_recovered(each, others)
        return found

    def _is_unnamed(self, straggler: Straggler) -> bool:
        """Whether this is the first look that finds it; from then on it counts as named."""
        key = (straggler.rank, straggler.kind)
        unnamed = key not in self._named
        self._named.add(key)
        return unnamed

    def _forget_recovered(self, each: _Placed, others: Sequence[_Placed]) -> None:
        usual = statistics.median(other.own_s for other in others)
        if each.own_s < usual * (1 + RECOVERED_BELOW):
            self._named.discard((each.progress.rank, "slow"))
        if not _stalled(each, others):
            self._named.discard((each.progress.rank, "stall"))


def _placed(nodes: Sequence[NodeStatus]) -> Iterator[_Placed]:
    for node in nodes:
        for place, rank in enumerate(sorted(node.ranks, key=lambda each: each.rank)):
            if rank.phase != "training" or rank.own_s is None or rank.own_low_s is None or rank.own_max_s is None:
                continue
            gpu = gpu_label(node.gpus[place]) if len(node.gpus) >= len(node.ranks) else None
            yield _Placed(
                progress=rank, host=node.host, gpu=gpu, own_s=rank.own_s, low_s=rank.own_low_s, max_s=rank.own_max_s
            )


def gpu_label(gpu: GpuSample) -> str:
    """A GPU for people: "GPU 3 (NVIDIA H100)"."""
    return f"GPU {gpu.index} ({gpu.name})"


def _judge(each: _Placed, others: Sequence[_Placed]) -> Iterator[Straggler]:
    usual = statistics.median(other.own_s for other in others)
    where = f"rank {each.progress.rank} ({each.host}{f', {each.gpu}' if each.gpu else ''})"
    if usual <= 0:
        return
    if each.low_s > usual * (1 + SLOWER_BY):
        slowdown = each.own_s / usual
        data = statistics.median(other.progress.data_s or 0.0 for other in others)
        # Where most of the excess lies.
        in_data = (each.progress.data_s or 0.0) - data > (each.own_s - usual) / 2
        what = "waiting for data" if in_data else "computing"
        message = (
            f"{where} is slow: it takes {each.own_s:.3g} s a step without waiting, the others {usual:.3g} s; "
            f"the excess is in {what}"
        )
        yield _straggler(each, "slow", slowdown, message)
    elif _stalled(each, others):
        message = f"{where} stalled: a step took it {each.max_s:.3g} s instead of about {each.own_s:.3g} s"
        yield _straggler(each, "stall", each.max_s / each.own_s, message)


def _stalled(each: _Placed, others: Sequence[_Placed]) -> bool:
    """Whether one of its last steps stalled, and not those of the others as well, as when the file server does."""
    limit = max(STALL_TIMES * each.own_s, each.own_s + STALL_S)
    return each.max_s > limit and statistics.median(other.max_s for other in others) < each.max_s / 2


def _straggler(each: _Placed, kind: Literal["slow", "stall"], slowdown: float, message: str) -> Straggler:
    return Straggler(
        rank=each.progress.rank,
        host=each.host,
        gpu=each.gpu,
        step=each.progress.step,
        kind=kind,
        slowdown=round(slowdown, 3),
        message=message,
    )
