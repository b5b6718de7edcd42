"""How long a rank may be silent in each phase: from the silences that this run's ranks have come out of.

Every beat ends a silence. Phases that have no beats of their own (an import, one large file) are silent from their
beginning to their end. What was measured stays for later attempts, which so know how long a first step takes.
"""

import math
from collections.abc import Mapping

from dsrun.runs.heartbeat import RankHeartbeat

BEFORE_TRAINING = ("starting", "loading", "tokenising")

SHORTEST_S = 10.0
"""The least limit in the loop of steps, and how long a rank may stand stopped."""
SHORTEST_ELSEWHERE_S = 120.0
"""The least limit in other phases, as scoring or writing one file has no beat, and texts grow longer; and of a step
that may compile new shapes."""
UNKNOWN_S = 600.0
"""The limit in a phase that no rank of this run has come through yet, such as the first step, and for the first sign of
life of a rank."""
BUSY_S = 1800.0
"""The limit of a rank that gives no beat and computes: loading, writing, scoring and compiling can take long without
one."""
STILL_S, STILL_WRITING_S = 15.0, 30.0
"""How long ranks that were asked to stop may all stand still; the second in phases that write, after the first time."""
TIMES_LONGEST = 3.0
# Before the process group gives up, whose time-out ends ranks that only wait, and blames one of them.
_OF_GROUP = 0.9
# But always above what has been: a user may set a time-out of the group below the time of a step.
_ABOVE_LONGEST = 1.5
_FIRST_STEP = "first step"
_COMPUTING = (*BEFORE_TRAINING, "saving", "exporting", "ending")


def phase_of(beat: RankHeartbeat) -> str:
    """The phase of a beat; the first two steps, which compile and fill caches, are one of their own."""
    return _FIRST_STEP if beat.phase == "training" and not beat.slowest_step else beat.phase


def computing_counts(beat: RankHeartbeat) -> bool:
    """Whether a rank that computes lives without a beat, as where beats are rare. Not in the loops of steps and
    batches: a GPU's rank that waits for others computes too."""
    return beat.phase in _COMPUTING


def busy_limit(beat: RankHeartbeat, hang_timeout: float | None) -> float:
    """Seconds without a beat after which a rank hangs although it computes."""
    if hang_timeout == 0:
        return math.inf
    return max(_OF_GROUP * max(BUSY_S, beat.group_timeout_s), hang_timeout or 0.0)


class PhaseLimits:
    """Of this machine's ranks, over all attempts of a run; `hang_timeout` is in seconds, 0 for never, None for limits
    from what was measured. With `others` the ranks may wait for those of other machines, which are not seen here."""

    def __init__(self, hang_timeout: float | None, *, others: bool = False) -> None:
        self.hang_timeout = hang_timeout
        self._others = others
        self._longest: dict[str, float] = {}
        self._last: dict[int, RankHeartbeat] = {}
        self._silence: dict[int, float] = {}

    def update(self, beats: Mapping[int, RankHeartbeat]) -> None:
        """Take in the last beats, by rank. A phase counts once it is over."""
        for rank, beat in beats.items():
            last = self._last.get(rank)
            self._last[rank] = beat
            if last is None or last.pid != beat.pid:
                self._silence[rank] = 0.0
                continue
            silence = self._silence[rank] = max(self._silence.get(rank, 0.0), beat.time - last.time)
            if phase_of(beat) != phase_of(last):
                self._learn(phase_of(last), silence)
                self._silence[rank] = 0.0
            if phase_of(beat) == "training":
                self._learn("training", beat.slowest_step)

    def _learn(self, phase: str, seconds: float) -> None:
        self._longest[phase] = max(self._longest.get(phase, 0.0), seconds)

    def still_limit(self, beat: RankHeartbeat, *, in_kernel: bool) -> float:
        """Seconds that the rank of `beat` may stand still after all ranks were asked to stop."""
        # What waits for another machine's ranks looks the same.
        if self._others or in_kernel or beat.phase == "running" or self.hang_timeout == 0:
            return math.inf
        longest, least = self._known(beat), STILL_S
        if beat.phase in ("saving", "exporting"):
            # A file system in user space uploads in close(), which nothing shows: how long is not known yet.
            least = SHORTEST_ELSEWHERE_S if longest is None else STILL_WRITING_S
        return max(least, self.hang_timeout or 0.0, _ABOVE_LONGEST * (longest or 0.0))

    def _known(self, beat: RankHeartbeat) -> float | None:
        """The longest silence so far in the phase of `beat`; None where no rank has come through it."""
        longest = self._longest.get(phase_of(beat))
        return max(longest or 0.0, beat.slowest_step) if phase_of(beat) == "training" else longest

    def limit(self, beat: RankHeartbeat, *, in_kernel: bool = False) -> float:
        """Seconds that the rank of `beat` may give no sign of life; `in_kernel`: in uninterruptible sleep, as for a
        file server that changes over, which takes minutes."""
        if beat.phase == "running":
            return math.inf  # as long as a program without heartbeats
        if self.hang_timeout is not None:
            # The others may have to load what is here already.
            least = UNKNOWN_S if self._others and beat.phase in BEFORE_TRAINING else 0.0
            return max(self.hang_timeout, least) if self.hang_timeout else math.inf
        phase = phase_of(beat)
        longest = self._known(beat)
        if longest is None:
            long = beat.compiles or (self._others and computing_counts(beat))
            limit, longest = busy_limit(beat, None) if long else UNKNOWN_S, 0.0
        else:
            shortest = SHORTEST_S if phase == "training" and not beat.compiles else SHORTEST_ELSEWHERE_S
            if phase != "training" and (self._others or (in_kernel and computing_counts(beat))):
                shortest = UNKNOWN_S
            limit = max(shortest, TIMES_LONGEST * longest)
        if beat.group_timeout_s:
            limit = max(min(limit, _OF_GROUP * beat.group_timeout_s), _ABOVE_LONGEST * longest)
        return limit
