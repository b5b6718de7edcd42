"""Heartbeats: one small file per rank, rewritten at every step, that the supervisor reads.

A file and not a collective, so that a rank that hangs in one is seen from outside; in a folder of the machine's own,
so that no shared file system can make it hang.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Self

from dsrun.datafiles import toml_beside
from dsrun.system import variables
from dsrun.system.files import parse_json
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
    `answers` tells whether SIGUSR2 makes the process write its stacks (faulthandler) to its log.
    """

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
