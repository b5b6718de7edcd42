"""The CPU time of a running process and all that it started, at any moment: a busy machine stretches only wall time."""

from __future__ import annotations

import time
from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass, field

import psutil


@dataclass
class CpuClock:
    """User and system seconds of the process tree of `pid`, sampled whenever `sample` is called."""

    pid: int
    samples: list[tuple[float, float]] = field(default_factory=list)

    def sample(self) -> None:
        self.samples.append((time.time(), cpu_seconds(self.pid)))

    def at(self, moment: float) -> float:
        """CPU seconds used until `moment` (seconds since the epoch), between samples by interpolation."""
        place = bisect_left(self.samples, (moment, 0.0))
        if not 0 < place < len(self.samples):
            return self.samples[min(place, len(self.samples) - 1)][1]
        (t0, c0), (t1, c1) = self.samples[place - 1 : place + 1]
        return c0 + (c1 - c0) * (moment - t0) / (t1 - t0)


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and all its descendants, those that have ended included."""
    total = 0.0
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
    return total
