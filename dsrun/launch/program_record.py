"""What dsrun records of a program of the user's own, as its own training does itself: starts, steps, the end."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dsrun.events import kind_of
from dsrun.launch.training_job import RunOutcome, TrainingJob
from dsrun.runs.attempts import attempt, start_times
from dsrun.runs.folder import RunFolder
from dsrun.runs.lock import trainer_of
from dsrun.runs.records import EventLog, LedgerRecord, LineAppender
from dsrun.runs.stop_request import StopRequest
from dsrun.runs.tail import FileTail, last_record
from dsrun.system import variables
from dsrun.system.build_locks import remove_abandoned
from dsrun.system.terminal.display import utc_text

PROGRESS_S = 60.0
"""Seconds between two events that tell that training goes on."""
LOCKS_S = 30.0
"""Seconds between two looks for locks that killed builds have left: /proc is read, for each lock that there is."""
MOST_BYTES = 2 << 20
"""Of what a program has written since the look before, so much at its end is read: half a second."""


class ProgramRecord:
    """The record that the supervisor of the first node keeps of a program of the user's own; and on each node, its
    operations are kept from waiting for a build that was killed, which `notify` is told. `asked` is the request to stop
    that went to the program alone, if any.

    Its steps are those that `log`, the output of this node's ranks, shows to `dsrun monitor --log`. A script that
    trains with dsrun.train.Trainer keeps its record itself, in the same files. Of dsrun's own training, only an end is
    recorded that its ranks did not tell; on other nodes nothing is.
    """

    def __init__(
        self,
        job: TrainingJob,
        log: Path,
        notify: Callable[[str], None],
        asked: Callable[[], StopRequest | None] = lambda: None,
    ) -> None:
        self._job = job
        self._notify = notify
        self._asked = asked
        self._is_asked = False
        self._unlocked_at, self._told_locks = 0.0, set[Path]()
        self._folder = RunFolder(job.run)
        self._is_ours = job.external and job.node_rank == 0
        self._run_json = _written(self._folder.run_json)
        # The thread of the node's status looks, while the supervisor begins an attempt or ends the run.
        self._lock = threading.Lock()
        self._tail = FileTail(log, most=MOST_BYTES)
        self._figures: ProgramFigures | None = None
        self._told_at: float | None = None
        self._is_going = False

    def begin(self, number: int, environ: Mapping[str, str]) -> None:
        """Attempt `number`, with the environment of its ranks, begins."""
        self._unlock(within_s=0.0)
        if not self._is_ours:
            return
        with self._lock, suppress(OSError):  # a full disk is a reason to write less, not to end
            self._look()
            environ = {**environ, variables.ATTEMPT: str(number)}
            name, size = self._job.name, self._job.world_size
            self._event("start", program=name, world_size=size, **attempt(environ), **start_times(environ))
            self._figures, self._told_at, self._is_going = ProgramFigures(self._tail), None, True

    def over(self) -> None:
        """The attempt is over, or about to be ended: what it has written so far comes before that."""
        with self._lock, suppress(OSError):
            self._look()
        self._is_going = False

    @property
    def step(self) -> int | None:
        """The last step of the newest attempt; None before one was written, and where the ranks keep the record."""
        return self._figures.step if self._figures else None

    def look(self) -> None:
        """Record what the program has written since the look before. Raises OSError."""
        self._unlock(within_s=LOCKS_S)
        with self._lock:
            self._look()

    def end(self, outcome: RunOutcome, signal: str | None) -> None:
        """Record how the run ended, unless somebody has: by the signal of this name that it was asked to stop by, or
        well, which a program may all the same. A failure is an event already."""
        self._unlock(within_s=0.0)  # of a build that was ended with its rank
        is_failure = outcome.exit_code != 0 and signal is None
        with self._lock, suppress(OSError):
            self._is_going = not is_failure
            self._look()
            if is_failure or self._job.node_rank or not (signal or self._is_ours):
                return
            if outcome.exit_code == 0 and not (self._figures and self._figures.has_steps_left):
                signal = None  # the program, which was asked, has gone on to its end
            untold = ("killed",) if signal else ("killed", "stopped")
            if kind_of(last_record(self._folder.events)).over not in untold or trainer_of(self._folder.path):
                return
            step = self._figures.step if self._figures else None
            if signal:
                self._event("signal", signal=signal, step=step)
            else:
                self._event("end", exit_code=outcome.exit_code, step=step)

    def _unlock(self, *, within_s: float) -> None:
        """Remove locks of torch's builds that nobody holds, unless that was done within so many seconds."""
        now = time.monotonic()
        if self._job.external and now - self._unlocked_at >= within_s:
            # Each look at a file server that does not answer would leave a thread behind.
            answers = remove_abandoned(self._job.env, self._notify, self._told_locks)
            self._unlocked_at = now if answers else math.inf

    def _look(self) -> None:
        if self._figures is None or _written(self._folder.run_json) != self._run_json:
            return
        figures = self._figures
        if records := figures.read():
            with LineAppender(self._folder.metrics) as file:
                for record in records:
                    file.append(record)
        if self._is_going and not self._is_asked and (request := self._asked()):
            self._is_asked = True  # told now: a grace time ends with SIGKILL
            self._event("signal", signal=request.signal, step=figures.step)
        now = time.monotonic()
        is_told = self._told_at is not None and now - self._told_at < PROGRESS_S
        if not self._is_going or figures.step is None or is_told:
            return
        if self._told_at is None:
            self._event("training", step=max(0, figures.first_step - 1), max_steps=figures.max_steps)
        else:
            self._event("progress", step=figures.step, max_steps=figures.max_steps)
        self._told_at = now

    def _event(self, kind: str, **details: Any) -> None:
        with EventLog(self._folder.events) as log:
            log.write(kind, **details)


class ProgramFigures:
    """The figures in the output of one attempt, as records for metrics.jsonl."""

    def __init__(self, tail: FileTail) -> None:
        """`tail` has read the output up to where this attempt begins."""
        from dsrun.monitoring.trainer_logs.status import LogReader

        self._tail = tail
        self._reader = LogReader(tail.path)
        self._read_at = time.time()
        self._last: LedgerRecord | None = None
        self.first_step = 0

    @property
    def step(self) -> int | None:
        """The last step; None before one was written."""
        log = self._reader.log
        return log.steps[-1]["step"] if log.step is None and log.steps else log.step

    @property
    def max_steps(self) -> int | None:
        """How many steps the program makes, where it says so."""
        return self._reader.log.max_steps

    @property
    def has_steps_left(self) -> bool:
        """Whether it says that it makes more steps than it has made."""
        return self.step is not None and self.max_steps is not None and self.step < self.max_steps

    def read(self) -> list[LedgerRecord]:
        """The records of what was added. Raises OSError."""
        had_step = self.step is not None
        log, before, self._read_at = self._reader.log, self._read_at, time.time()
        with suppress(FileNotFoundError):
            self._reader.feed(self._tail.read()[0], now=None)
        steps = [record for record in log.steps if record != self._last]
        if not had_step and self.step is not None:
            self.first_step = log.steps[0]["step"] if log.steps else self.step
        found = _timed([*steps, *log.evaluations], before, self._read_at)
        if not log.loss_is_finite and self.step is not None:
            found.append({"step": self.step, "loss": math.nan})
        # The last one may get further figures, and of some programs the next one counts from it.
        log.steps, log.evaluations = log.steps[-1:], []
        self._last = log.steps[-1] if log.steps else None
        return found


def _timed(records: list[LedgerRecord], before: float, now: float) -> list[LedgerRecord]:
    """The records, those whose line bears no time spread evenly over the time since the look before."""
    share = (now - before) / max(1, len(records))
    return [{"time": utc_text(before + share * (place + 1)), **each} for place, each in enumerate(records)]


def _written(file: Path) -> int:
    with suppress(OSError):
        return file.stat().st_mtime_ns
    return 0
