"""What dsrun records of a program of the user's own, as its own training does itself: starts, steps, the end."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dsrun.events import PROGRESS_S, kind_of
from dsrun.launch.context import RunOutcome, TrainingJob
from dsrun.runs.attempts import attempt, start_times
from dsrun.runs.folder import RunFolder
from dsrun.runs.heartbeat import StopRequest
from dsrun.runs.lock import trainer_of
from dsrun.runs.records import EventLog, LedgerRecord, LineAppender, finite, iter_records, step_of
from dsrun.runs.tail import FileTail, last_record
from dsrun.system import variables
from dsrun.system.build_locks import remove_abandoned
from dsrun.system.terminal.display import utc_text

LOCKS_S = 30.0
"""Seconds between two looks for locks that killed builds have left: /proc is read, for each lock that there is."""
LOCK_S = 5.0
"""The supervisor waits no longer for the thread of the node's status, which a dead file server may hold."""
READ_S = 2.0
"""So long a look reads output: a second of the CPU for a megabyte of figures, or for seven of other text. The next look
goes on with the rest, of which MOST_BYTES count."""
MOST_BYTES = 64 << 20
_PIECE = 128 << 10
"""Of less output than has as many steps as a TrainerLog holds."""


class ProgramRecord:
    """The record that the supervisor of the first node keeps of a program of the user's own; and on each node, its
    operations are kept from waiting for a build that was killed, which `notify` is told. `asked` is the request to stop
    that went to the program alone, if any.

    Its steps are those that `log`, the output of this node's ranks, shows to `dsrun monitor --log`. A script that
    trains with dsrun.train.Trainer keeps its record itself, in the same files. Of dsrun's own training, only an end is
    recorded that its ranks did not tell; on other nodes nothing is."""

    def __init__(
        self,
        job: TrainingJob,
        log: Path,
        notify: Callable[[str], None],
        asked: Callable[[], StopRequest | None] = lambda: None,
    ) -> None:
        self._job = job
        self.ranks = job.world_size
        self._notify = notify
        self._asked = asked
        self._is_asked = False
        self._unlocked_at, self._told_locks = 0.0, set[Path]()
        self._folder = RunFolder(job.run)
        self._is_ours = job.external and job.node_rank == 0
        self._run_json = _written(self._folder.run_json)
        # The thread of the node's status looks, while the supervisor begins an attempt or ends the run.
        self._lock = threading.Lock()
        self._tail = FileTail(log, most=MOST_BYTES, piece=_PIECE)
        self._told_gap = self._told_loss = False
        self._metrics: tuple[int, int] | None = None
        self._has_metrics = True
        self._figures: ProgramFigures | None = None
        self._told_at: float | None = None
        self._is_going = False

    def begin(self, number: int, environ: Mapping[str, str]) -> None:
        """Attempt `number`, of `ranks` with this environment, begins."""
        self._unlock(within_s=0.0)
        if not self._is_ours:
            return
        with self._recording(), self._held():
            self._look(is_last=True)
            if self._tail.behind:
                self._tail = FileTail(self._tail.path, begin=None, most=MOST_BYTES, piece=_PIECE)
            environ = {**environ, variables.ATTEMPT: str(number)}
            name, size = self._job.name, self.ranks
            self._event("start", program=name, world_size=size, **attempt(environ), **start_times(environ))
            self._figures, self._told_at, self._is_going = ProgramFigures(self._tail), None, True

    def over(self) -> None:
        """The attempt is over, or about to be ended: what it has written so far comes before that."""
        with self._recording(), self._held():
            try:
                self._look()
            finally:
                self._is_going = False

    @property
    def step(self) -> int | None:
        """The last step of the newest attempt; None before one was written, and where the ranks keep the record."""
        return self._figures.log.step if self._figures else None

    def look(self) -> None:
        """Record what the program has written since the look before. Raises OSError."""
        self._unlock(within_s=LOCKS_S)
        with self._held():
            self._look()

    def end(self, outcome: RunOutcome, signal: str | None) -> None:
        """Record how the run ended, unless somebody has: by the signal of this name that it was asked to stop by, or
        well, which a program may all the same. A failure is an event already."""
        self._unlock(within_s=0.0)  # of a build that was ended with its rank
        # What srun ends after a failure is not what was to be stopped.
        has_failed = kind_of(last_record(self._folder.events)).is_failure
        is_failure = outcome.exit_code != 0 and (signal is None or has_failed)
        with self._recording(), self._held():
            self._is_going = not is_failure
            self._look(is_last=True)
            if is_failure or self._job.node_rank or not (signal or self._is_ours):
                return
            step, of = (self._figures.log.step, self._figures.log.max_steps) if self._figures else (None, None)
            if outcome.exit_code == 0 and (step is None or of is None or step >= of):
                signal = None  # the program, which was asked, has gone on to its end
            untold = ("killed",) if signal else ("killed", "stopped")
            if kind_of(last_record(self._folder.events)).over not in untold or trainer_of(self._folder.path):
                return
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

    @contextmanager
    def _recording(self) -> Iterator[None]:
        """A full disk is a reason to write less, not to end: that is told once."""
        try:
            yield
        except OSError as error:
            if not self._told_loss:
                self._told_loss = True
                why = error.strerror or "its disk does not answer"
                self._notify(f"{self._folder.path}: the record of the run is incomplete: {why}")

    @contextmanager
    def _held(self) -> Iterator[None]:
        """With the lock. Raises TimeoutError, an OSError, where the other thread does not let it go."""
        if not self._lock.acquire(timeout=LOCK_S):
            raise TimeoutError
        try:
            yield
        finally:
            self._lock.release()

    def _look(self, *, is_last: bool = False) -> None:
        if self._figures is None or _written(self._folder.run_json) != self._run_json:
            return
        figures = self._figures
        if (records := figures.read()) and self._has_metrics:
            self._append(records)
        if (self._tail.skipped or (is_last and self._tail.behind)) and not self._told_gap:
            self._told_gap = True
            self._notify(f"the program writes faster than dsrun reads: figures in {self._tail.path} are left out")
        if self._is_going and not self._is_asked and (request := self._asked()):
            self._is_asked = True  # told now: a grace time ends with SIGKILL
            self._event("signal", signal=request.signal, step=figures.log.step)
        self._tell(figures)
        broken = next((each for each in records if "loss" in each and finite(each["loss"]) is None), None)
        if broken and self._is_going and not figures.told_nan:
            figures.told_nan = True
            self._event("nan", step=step_of(broken), loss="nan")

    def _append(self, records: list[LedgerRecord]) -> None:
        """Add to metrics.jsonl, unless the program itself writes a file of that name."""
        metrics = self._folder.metrics
        # A LineAppender has begun it in an attempt before, or in a run that is resumed.
        is_ours = not self._metrics and [*next(iter_records(metrics), {})][:2] == ["time", "elapsed"]
        if _written(metrics) not in (None, self._metrics) and not is_ours:
            self._has_metrics = False
            self._notify(f"{metrics} is written by the program itself: dsrun adds nothing more to it")
            return
        try:
            with LineAppender(metrics) as file:
                for record in records:
                    file.append(record)
        finally:
            self._metrics = _written(metrics)

    def _tell(self, figures: "ProgramFigures") -> None:
        """That training goes on, now and then."""
        now, log = time.monotonic(), figures.log
        is_told = self._told_at is not None and now - self._told_at < PROGRESS_S
        if not self._is_going or log.step is None or is_told:
            return
        kind, step = "training", None if self._tail.skipped else max(0, figures.first_step - 1)
        if self._told_at is not None:
            kind, step = "progress", log.step
        self._event(kind, step=step, max_steps=log.max_steps, step_s=log.step_s)
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
        self.log = self._reader.log
        """What the output has told so far; its `step` is None before one was written."""
        self._read_at = time.time()
        self._last: LedgerRecord | None = None
        self.first_step = 0
        self.told_nan = False

    def read(self) -> list[LedgerRecord]:
        """The records of what was added. Raises OSError."""
        before, self._read_at, until = self._read_at, time.time(), time.monotonic() + READ_S
        found: list[LedgerRecord] = []
        with suppress(FileNotFoundError):
            while added := self._tail.read()[0]:
                found += self._records_in(added)
                if not self._tail.behind or time.monotonic() > until:
                    break
        return _timed(found, before, self._read_at)

    def _records_in(self, added: bytes) -> list[LedgerRecord]:
        log, had_step = self.log, self.log.step is not None
        self._reader.feed(added, now=None)
        found = [*(record for record in log.steps if record != self._last), *log.evaluations]
        if not had_step and log.step is not None:
            self.first_step = next((step for each in log.steps if (step := step_of(each)) is not None), log.step)
        # The last one may get further figures, and of some programs the next one counts from it.
        log.steps, log.evaluations = log.steps[-1:], []
        self._last = log.steps[-1] if log.steps else None
        return found


def _timed(records: list[LedgerRecord], before: float, now: float) -> list[LedgerRecord]:
    """The records, those whose line bears no time spread evenly over the time since the look before."""
    share = (now - before) / max(1, len(records))
    return [{"time": utc_text(before + share * (place + 1)), **each} for place, each in enumerate(records)]


def _written(file: Path) -> tuple[int, int] | None:
    """What tells a file, as it is now, from another one; None where there is none."""
    with suppress(OSError):
        return (found := file.stat()).st_ino, found.st_size
    return None
