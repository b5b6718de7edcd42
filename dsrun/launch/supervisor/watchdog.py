"""Detects a rank that hangs: from the heartbeats, and where these are rare from what the kernel counts of its work.

How long a rank may be silent in each phase follows from the silences that this run's ranks have come out of. Every beat
ends a silence. Phases that have no beats of their own (an import, one large file) are silent from their beginning to
their end. What was measured stays for later attempts, which so know how long a first step takes."""

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dsrun.launch.supervisor.reaper import stat_fields
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


# A supervisor that did not look for so long was itself stopped, or the machine asleep: no rank's silence counts.
_ABSENT_S = 2.0


@dataclass(frozen=True, kw_only=True)
class RankHang:
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


class Watchdog:
    """Looks at all ranks of this machine again and again. `limits` says how long each may be silent; `beat_expected`:
    a rank that gives no first beat hangs too."""

    def __init__(self, limits: PhaseLimits, *, beat_expected: bool = False) -> None:
        self._limits = limits
        self._timeout = limits.hang_timeout
        self._beat_expected = beat_expected
        self._stopped: dict[int, float] = {}
        self._seen: dict[int, float] = {}
        self._looked: float | None = None
        self._since = -math.inf

    def poll(
        self,
        beats: Mapping[int, RankHeartbeat],
        states: Mapping[int, str],
        now: float,
        computed: Mapping[int, float] = {},
        asked: float | None = None,
    ) -> RankHang | None:
        """The rank that hangs, None where none does.

        `beats` are those of the ranks that live, `states` their letters of proc(5), `computed` when they last did;
        `now` is by the clock of the beats, in seconds, as is `asked`, when the ranks were asked to stop: then they
        hang, too, where none of them so much as computes. One rank that hangs stops all others in their next collective
        operation, so the one to blame is one that is stopped, else the one that got least far."""
        if self._looked is not None and now - self._looked > _ABSENT_S:
            self._since = now
        self._looked = now
        self._limits.update(beats)
        self._seen = {rank: self._seen.get(rank, now) for rank in states}
        self._stopped = {rank: self._stopped.get(rank, now) for rank in states if states[rank] == "T"}
        found = self._long_stopped(beats, now) or self._never_began(beats, now, computed)
        if found:
            return found
        silent = {rank: self._silent(beat, now, computed) for rank, beat in beats.items()}
        in_kernel = {rank: states.get(rank) == "D" for rank in beats}
        limits = {rank: self._limits.limit(beat, in_kernel=in_kernel[rank]) for rank, beat in beats.items()}
        late = [rank for rank in beats if silent[rank] > limits[rank]]
        if asked is not None and not late:
            since = max(self._since, asked)
            silent = {rank: now - max(beat.time, computed.get(rank, since), since) for rank, beat in beats.items()}
            limits = {rank: self._limits.still_limit(beat, in_kernel=in_kernel[rank]) for rank, beat in beats.items()}
            late = list(beats) if all(silent[rank] > limits[rank] for rank in beats) else []
        busy = any(beats[rank].phase != "training" and rank not in late for rank in beats)
        if not late or busy:  # the others wait for the one that saves
            return None
        first = min(late, key=lambda rank: (states.get(rank) != "T", beats[rank].step, beats[rank].time))
        return RankHang(rank=first, silent_s=silent[first], limit_s=limits[first], stopped=states.get(first) == "T")

    def _silent(self, beat: RankHeartbeat, now: float, computed: Mapping[int, float]) -> float:
        """Seconds without a sign of life."""
        last = max(beat.time, self._since)
        if computing_counts(beat) and now - last <= busy_limit(beat, self._timeout):
            last = max(last, computed.get(beat.rank, last))
        return now - last

    def _never_began(
        self, beats: Mapping[int, RankHeartbeat], now: float, computed: Mapping[int, float]
    ) -> RankHang | None:
        """A rank that should have given its first beat long ago."""
        if not self._beat_expected or self._timeout == 0:
            return None
        for rank, since in self._seen.items():
            last = max(since, self._since)
            if now - last <= BUSY_S:
                last = max(last, computed.get(rank, last))
            if rank not in beats and now - last > UNKNOWN_S:
                return RankHang(rank=rank, silent_s=now - last, limit_s=UNKNOWN_S, stopped=False)
        return None

    def _long_stopped(self, beats: Mapping[int, RankHeartbeat], now: float) -> RankHang | None:
        """A rank that has been stopped for long, in whatever phase."""
        limit = math.inf if self._timeout == 0 else self._timeout or SHORTEST_S
        for rank, since in self._stopped.items():
            if now - max(since, self._since) > limit:
                last = beats[rank].time if rank in beats else since
                return RankHang(rank=rank, silent_s=now - max(last, self._since), limit_s=limit, stopped=True)
        return None


_EVERY_S = 1.0
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
# Threads that look at something now and then take less, one that is kept from the processor gets more.
_LEAST_S = 0.05
_SHARE = 0.01
# The first of the fields of proc(5) behind the name is the third: utime is the 14th, stime the 15th.
_UTIME, _STIME = 11, 12
# On a slow file server a rank reads and writes for long with less CPU time than counts; 1 MiB/s is work like 1.6%.
_BYTES_A_SECOND = 64 << 20
# What read(2) takes from a disk counts in two of them, which errs on the side of life (proc_pid_io(5)).
_MOVED = (b"rchar", b"wchar", b"read_bytes")


class Activity:
    """Looks at the ranks about once a second."""

    def __init__(self) -> None:
        self._looked = -_EVERY_S
        self._seen: dict[int, tuple[int, float, float]] = {}

    def update(self, pids: Mapping[int, int], now: float) -> dict[int, float]:
        """When each rank of `pids` (rank → process id) was last seen to have worked, by the clock of `now`."""
        if now - self._looked >= _EVERY_S:
            self._looked = now
            for rank, pid in pids.items():
                self._look(rank, pid, now)
        return {rank: at for rank, (_, at, _) in self._seen.items() if rank in pids}

    def _look(self, rank: int, pid: int, now: float) -> None:
        used = cpu_seconds(pid) + bytes_moved(pid) / _BYTES_A_SECOND
        before, at, then = self._seen.get(rank, (0, now, used))
        if before != pid or used - then >= max(_LEAST_S, _SHARE * (now - at)):
            self._seen[rank] = (pid, now, used)


def cpu_seconds(pid: int) -> float:
    """The CPU seconds of all threads of a process; 0 where there is none."""
    fields = stat_fields(pid)
    return (int(fields[_UTIME]) + int(fields[_STIME])) * _TICK_S if fields else 0.0


def bytes_moved(pid: int) -> int:
    """Bytes that a process has read and written by system calls, and those that came from a disk, as by mmap; 0 where
    the kernel does not show them."""
    with suppress(OSError, ValueError):
        lines = (line.split(b":") for line in Path(f"/proc/{pid}/io").read_bytes().splitlines())
        return sum(int(value) for name, value in lines if name in _MOVED)
    return 0
