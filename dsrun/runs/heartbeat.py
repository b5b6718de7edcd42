"""Heartbeats: one small file per rank, rewritten at every step, that the supervisor reads.

A file and not a collective, so that a rank that hangs in one is seen from outside; in a folder of the machine's own,
so that no shared file system can make it hang. The other way goes the stop file, which carries a request to save a
checkpoint and exit between the processes of one machine: which signal, where and when."""

import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Self

from dsrun.datafiles import toml_beside
from dsrun.runs.records import utc_now
from dsrun.system import variables
from dsrun.system.files import parse_json, replacing
from dsrun.system.terminal.stderr import say

RankPhase = Literal[
    "starting", "loading", "tokenising", "training", "evaluating", "generating", "saving", "exporting", "ending",
    "leaving", "running",
]  # fmt: skip
"""`running` is code of the user's own, around dsrun's Trainer or in a plugin: it gives no signs of life."""

_WORDS: Mapping[RankPhase, str] = toml_beside(__file__)["words"]
STALL_TIMES = 5.0
"""A single step stalled that took so many times the usual own time, and so many seconds longer."""
STALL_S = 2.0
# Bytes to which a beat is filled up, as a shorter one must not leave the end of a longer one; the longest seen has 350.
SignOfLife = Callable[[], None]
"""Called now and then during long work, so that it does not look like a hang."""
_WIDTH = 512


@dataclass(frozen=True, kw_only=True)
class StepFigures:
    """Of a rank's recent steps, the median seconds of a step and of its parts: waiting for data, computing, and waiting
    for other ranks; `own_low_s` is what three quarters of at least 30 steps exceeded in data and computing together.
    None where they are not known. `stalls` counts the steps so far that took it far longer, together `stalled_s`
    seconds more."""

    step_s: float | None = None
    data_s: float | None = None
    compute_s: float | None = None
    wait_s: float | None = None
    own_low_s: float | None = None
    stalls: int = 0
    stalled_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RankHeartbeat(StepFigures):
    """A rank's last heartbeat.

    `beats` counts up with every sign of life; `time` is CLOCK_MONOTONIC in seconds, the same for all processes of one
    machine; `slowest_step` is the longest time between two steps so far in seconds, 0 before the second step;
    `group_timeout_s` the time-out of the process group, 0 where there is none yet; `compiles`: torch.compile may keep a
    step waiting, the first and any that meets new shapes.
    `answers` tells whether SIGUSR2 makes the process write its stacks (faulthandler) to its log."""

    rank: int
    pid: int
    beats: int
    time: float
    phase: RankPhase
    step: int
    slowest_step: float
    answers: bool
    group_timeout_s: float = 0.0
    compiles: bool = False


def activity(beat: RankHeartbeat) -> tuple[str, str]:
    """What a rank does, and how far it is, for the user."""
    return _WORDS[beat.phase], f", step {beat.step}" if beat.phase == "training" else ""


class HeartbeatWriter:
    """This rank's side. Without a folder every method does nothing."""

    def __init__(self, folder: Path | None, rank: int, *, answers: bool = False) -> None:
        self._fd = -1
        self._beat = RankHeartbeat(
            rank=rank, pid=os.getpid(), beats=0, time=time.monotonic(), phase="starting", step=0,
            slowest_step=0.0, answers=answers,
        )  # fmt: skip
        self._stepped: float | None = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(folder / f"rank-{rank}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._write({})

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], rank: int, *, answers: bool = False) -> Self:
        """The heart of this rank, which beats where DSRUN_HEARTBEAT says."""
        folder = environ.get(variables.HEARTBEAT)
        return cls(Path(folder) if folder else None, rank, answers=answers)

    @property
    def phase(self) -> RankPhase:
        return self._beat.phase

    def enter(self, phase: RankPhase) -> None:
        """A new phase begins. Time spent outside training does not count as a step's."""
        self._stepped = None
        self._write({"phase": phase})

    def join(self, group_timeout_s: float, *, compiles: bool = False) -> None:
        """From here on this rank waits for others, for so many seconds, and may compile."""
        self._write({"group_timeout_s": group_timeout_s, "compiles": compiles})

    def beat(self) -> None:
        """Still alive, in the same phase: a micro batch done, a batch evaluated, a shard written, rows tokenised."""
        self._write({})

    def step(self, step: int, times: Mapping[str, float] | None = None) -> None:
        """Optimizer step `step` is done; `times` are those of the last steps, by the names of `RankHeartbeat`."""
        now = time.monotonic()
        slowest = self._beat.slowest_step
        if self._stepped is not None:
            slowest = max(slowest, now - self._stepped)
        self._stepped = now
        self._write({"phase": "training", "step": step, "slowest_step": slowest, **(times or {})})

    def _write(self, changes: dict[str, object]) -> None:
        values = asdict(self._beat) | changes | {"beats": self._beat.beats + 1, "time": time.monotonic()}
        self._beat = RankHeartbeat(**values)
        say(*activity(self._beat))
        if self._fd >= 0:
            # One write of one block: a reader sees the old beat or the new one.
            os.pwrite(self._fd, json.dumps(values).encode().ljust(_WIDTH), 0)


def read_beats(folder: Path) -> dict[int, RankHeartbeat]:
    """The last beat of every rank that has a file in `folder`, by rank; a file that cannot be read is left out."""
    beats = {}
    for file in folder.glob("rank-*"):
        with suppress(OSError, ValueError, TypeError):
            beat = RankHeartbeat(**parse_json(file.read_bytes()))
            beats[beat.rank] = beat
    return dict(sorted(beats.items()))


UNKNOWN_SIGNAL = "a signal"
"""For a stop file without content: a full disk, or a program that only touched it."""
REGROUP = "the return of a node"
"""For a request that the ranks save and leave, to be started again at once on more machines (--elastic)."""


@dataclass(frozen=True)
class StopRequest:
    """`signal` came to `rank` (None: the supervisor, the agent or the batch script) on `host` at `time` (ISO 8601)."""

    signal: str = UNKNOWN_SIGNAL
    rank: int | None = None
    host: str | None = None
    time: str | None = None

    @classmethod
    def now(cls, signal: str, rank: int | None = None) -> Self:
        """A request that came to this machine at this moment. For signal handlers, too."""
        return cls(signal, rank, socket.gethostname(), utc_now())

    @property
    def regroups(self) -> bool:
        """Whether the run goes on at once."""
        return self.signal == REGROUP

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is left once the run goes on on more machines: it came from the run itself. A node may
        see that its ranks have left before it hears why."""
        return self.signal in (REGROUP, UNKNOWN_SIGNAL)

    def yields_to(self, other: "StopRequest | None") -> bool:
        """Whether `other`, which came later, is the one that counts: somebody's wish, where this is the run's own."""
        return self.regroups and other is not None and not other.is_over

    def __str__(self) -> str:
        """ "SIGTERM", "SIGTERM to gpu07" of another machine, "SIGTERM to rank 3 on gpu07"."""
        if self.rank is not None:
            return f"{self.signal} to rank {self.rank} on {self.host}"
        return self.signal if self.host in (None, socket.gethostname()) else f"{self.signal} to {self.host}"

    @classmethod
    def from_dict(cls, found: object) -> Self:
        """The inverse of `asdict`; what is not there or of another type is left out."""
        if not isinstance(found, Mapping):
            return cls()
        known = {name: found.get(name) for name in ("signal", "rank", "host", "time")}
        texts = {name: value for name, value in known.items() if name != "rank" and isinstance(value, str)}
        rank = known["rank"]
        return cls(**texts, rank=rank if isinstance(rank, int) else None)


def first_request(known: Iterable[StopRequest | None]) -> StopRequest:
    """The earliest request, one with a time if there is one."""
    found = [each for each in known if each is not None]
    return min(found, key=lambda each: (each.time is None, each.time or ""), default=StopRequest())


def write_stop_file(file: Path, request: StopRequest) -> None:
    """Write the request; the first one stays.

    For signal handlers: a full disk must not raise in them. A file without content is still a request."""
    with suppress(OSError):
        if not file.exists():
            # In one step: whoever sees the file sees what is in it.
            with replacing(file) as partial, suppress(OSError):
                partial.write_text(json.dumps(asdict(request)))


def read_stop_file(file: Path) -> StopRequest | None:
    """The request in a stop file, which may also hold the signal's name alone; None if there is none, or it cannot be
    read now."""
    try:
        text = file.read_text(errors="replace").strip()
    except OSError:
        return None
    try:
        found = parse_json(text)
    except ValueError:
        return StopRequest(text or UNKNOWN_SIGNAL)
    return StopRequest.from_dict(found)
