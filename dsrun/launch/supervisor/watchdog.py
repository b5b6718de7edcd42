"""Detects a rank that hangs, from the heartbeats."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dsrun.runs.heartbeat import Beat

BEFORE_TRAINING = ("starting", "loading", "tokenising")

SHORTEST_S = 10.0
"""The least time without a step that counts as hanging, and how long a rank may stand stopped."""
TIMES_SLOWEST = 3.0
OTHER_PHASES_S = 1800.0
"""The limit outside the loop of steps, and before the second step: loading, saving and compiling have no beat."""

# A supervisor that did not look for so long was itself stopped, or the machine asleep: no rank's silence counts.
_ABSENT_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Hang:
    """Rank `rank` gave no sign of life for `silent_s` seconds; `limit_s` allowed. `stopped`: by SIGSTOP or the like.
    `where` is where the ranks stand, in the words of `dsrun.diagnosis.hangs.summary`, "" where that is not known."""

    rank: int
    silent_s: float
    limit_s: float
    stopped: bool
    where: str = ""

    @property
    def message(self) -> str:
        """One line for the user."""
        where = f": {self.where}" if self.where else ""
        if self.stopped:
            return f"rank {self.rank} is stopped (SIGSTOP) and gave no sign of life for {self.silent_s:.0f} s{where}"
        return f"rank {self.rank} hangs: no sign of life for {self.silent_s:.0f} s (limit {self.limit_s:.0f} s){where}"


def limit_of(beat: Beat, hang_timeout: float | None) -> float:
    """Seconds this rank may be silent.

    In the loop of steps `hang_timeout`, by default three times the slowest step and at least ten seconds. Elsewhere
    half an hour, or `hang_timeout` where that is longer. `hang_timeout` 0 is for ever.
    """
    if hang_timeout == 0:
        return math.inf
    if beat.phase == "training" and beat.slowest_step > 0:
        return hang_timeout or max(SHORTEST_S, TIMES_SLOWEST * beat.slowest_step)
    return max(OTHER_PHASES_S, hang_timeout or 0)


class Watchdog:
    """Looks at all ranks of this machine again and again.

    `hang_timeout` is in seconds, 0 for never, None for the default.
    """

    def __init__(self, hang_timeout: float | None) -> None:
        self._timeout = hang_timeout
        self._stopped: dict[int, float] = {}
        self._looked: float | None = None
        self._since = -math.inf

    def poll(self, beats: Mapping[int, Beat], states: Mapping[int, str], now: float) -> Hang | None:
        """The rank that hangs, None where none does.

        `beats` are those of the ranks that live, `states` their letters of proc(5), `now` is by the clock of the
        beats, in seconds. One rank that hangs stops all others in their next collective operation, so the one to blame
        is one that is stopped, else the one that got least far.
        """
        if self._looked is not None and now - self._looked > _ABSENT_S:
            self._since = now
        self._looked = now
        self._stopped = {rank: self._stopped.get(rank, now) for rank in states if states[rank] == "T"}
        stopped = self._long_stopped(beats, now)
        if stopped:
            return stopped
        silent = {rank: now - max(beat.time, self._since) for rank, beat in beats.items()}
        limits = {rank: limit_of(beat, self._timeout) for rank, beat in beats.items()}
        late = [rank for rank in beats if silent[rank] > limits[rank]]
        busy = any(beats[rank].phase != "training" and rank not in late for rank in beats)
        if not late or busy:  # the others wait for the one that saves
            return None
        first = min(late, key=lambda rank: (states.get(rank) != "T", beats[rank].step, beats[rank].time))
        return Hang(rank=first, silent_s=silent[first], limit_s=limits[first], stopped=states.get(first) == "T")

    def _long_stopped(self, beats: Mapping[int, Beat], now: float) -> Hang | None:
        """A rank that has been stopped for long, in whatever phase."""
        limit = math.inf if self._timeout == 0 else self._timeout or SHORTEST_S
        for rank, since in self._stopped.items():
            if now - max(since, self._since) > limit:
                last = beats[rank].time if rank in beats else since
                return Hang(rank=rank, silent_s=now - max(last, self._since), limit_s=limit, stopped=True)
        return None
