"""What a supervisor writes: events.jsonl and remedy.json in the run folder, and the terminal, which may block."""

import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from queue import Full, Queue, SimpleQueue
from typing import IO, Any, Self

from dsrun.diagnosis.rules import cause_named
from dsrun.errors import UsageError
from dsrun.launch.memory_fallback import REMEDY_FILE, MemoryFallback, shrink, stored_fallback
from dsrun.launch.supervisor.ending import AttemptResult
from dsrun.launch.supervisor.failures import classify_log, explain
from dsrun.launch.supervisor.policy import CONFIGURATION, AttemptFailure, RunDecision, evidence_against
from dsrun.monitoring.straggler import Straggler
from dsrun.recipe.batch import BatchPlan
from dsrun.runs.attempts import RESUME_AUTO, RESUME_NEVER, earlier_signatures, saved_global_batch
from dsrun.runs.commit import tidy
from dsrun.runs.folder import RunFolder
from dsrun.runs.lock import trainer_of
from dsrun.runs.manifest import newest_complete
from dsrun.runs.records import EventLog, iter_records, write_json_atomic
from dsrun.system import variables
from dsrun.system.files import replacing
from dsrun.system.terminal.log_format import LineFormatter, NoiseFilter, write_stderr


class RunEventWriter:
    """Writes the supervisor's events and memory fallback into the run folder, and notifies the user."""

    def __init__(self, folder: RunFolder, notify: Callable[[str], None]) -> None:
        self._folder = folder
        self._notify = notify
        self._noted = False
        self._finished: int | None = None

    def begin(self) -> None:
        """An attempt begins: a FINISHED that is there is that of an earlier run."""
        self._finished = self._written_finished()

    def has_finished(self) -> bool:
        """Whether this attempt has reached the run's end, which is told after everything else is done."""
        return self._written_finished() not in (None, self._finished)

    def _written_finished(self) -> int | None:
        with suppress(OSError):
            return self._folder.finished.stat().st_mtime_ns
        return None

    def finished_all_the_same(self, failure: AttemptFailure) -> None:
        """On the first node: print and record that what happened after the run's end does not matter."""
        message = f"{failure.message}, after the run had finished: all of it is there"
        self._notify(message)
        self._event("end", failure.cause, exit_code=0, step=failure.step, message=message)

    def newest_checkpoint(self) -> int | None:
        """The step of the newest complete checkpoint, 0 for none; None where the file server fails."""
        with suppress(OSError):  # a moment's trouble with it is no reason to end the run
            newest = newest_complete(self._folder)
            return newest[0] if newest else 0
        return None

    def saved_batch(self, resume: str, environ: Mapping[str, str]) -> int | None:
        """The global batch of the checkpoint that the attempt of `environ` resumes from, None if there is none."""
        again = earlier_signatures(environ)
        # --resume never is about the first start.
        return saved_global_batch(self._folder, RESUME_AUTO[0] if again and resume == RESUME_NEVER else resume, again)

    def fallback(self) -> MemoryFallback:
        """What remedy.json says; none where it is damaged, which is noted once."""
        found = stored_fallback(self._folder.path)
        if found is None and not self._noted:
            self._noted = True
            self._notify(f"{self._folder.path / REMEDY_FILE} is damaged; the run begins with its own memory settings")
        return found or MemoryFallback()

    def failing(self, attempt: int, end: AttemptResult, *, first: bool) -> None:
        """On the `first` node: record what has failed while its ranks are still there, of which one holds the folder.
        Not an error in the configuration: perhaps another run has the folder."""
        if not first or end.ok or end.by_others or end.stop_requested:
            return
        failure = explain(end.failure_inputs, classify_log)
        if failure.exit_code in CONFIGURATION:
            return
        known = {"rank": failure.rank, "step": failure.step, "seconds": failure.detected_s, "message": failure.message}
        self._write("failing", cause=failure.cause or "unknown", attempt=attempt, **known)

    def waiting(self, message: str, limit_s: float) -> None:
        """On the first node: print and record what the supervisor waits for, for so many seconds at most."""
        self._notify(f"{message}; waiting for {limit_s:.0f} s more" if limit_s else message)
        self._write("waiting", message=message, seconds=limit_s)

    def failed(self, failure: AttemptFailure, decision: RunDecision, *, attempt: int) -> None:
        """On the first node: print and record what failed and what is done about it."""
        fallback = decision.fallback if decision.fallback != self.fallback() else None
        self._event(
            "failure",
            failure.cause,
            cause=decision.cause or failure.cause or "unknown",
            rank=failure.rank,
            node=failure.node,
            failed_host=failure.host or None,
            exit_code=failure.exit_code,
            step=failure.step,
            message=failure.message,
            seconds=failure.detected_s,
            stalled_s=failure.stalled_s,
            attempt=attempt,
        )
        if fallback is not None:
            self._event("remedy", message=decision.why, cause=failure.cause, attempt=attempt + 1, **asdict(fallback))
        if decision.action == "stop":
            self._accuse(failure)
        if decision.action == "restart":
            self._event("restart", message=decision.why, seconds=decision.wait_s, attempt=attempt + 1)
            self._notify(_line(failure, decision))

    def _accuse(self, failure: AttemptFailure) -> None:
        """Tell the script of a SLURM job which node to avoid, and why, where failures speak against it."""
        shared = os.environ.get(variables.FAILURES)
        if not shared:
            return
        with suppress(OSError):
            if why := evidence_against(failure, iter_records(self._folder.events)):
                Path(shared, "faulty-node").write_text(f"{failure.node} {why}\n")

    def straggles(self, found: Straggler) -> None:
        """On the first node, while ranks run: print and record which rank holds the others up; of many stalls of one
        rank ever fewer are printed."""
        if found.kind == "slow" or found.stalls & (found.stalls - 1) == 0:
            self._notify(f"step {found.step}: {found.message}")
        self._write(
            "straggler", rank=found.rank, host=found.host, gpu=found.gpu or None, step=found.step,
            slowdown=found.slowdown, chronic=found.is_chronic, stalls=found.stalls or None, lost_s=found.lost_s,
            message=found.message,
        )  # fmt: skip

    def regrouped(self, before: Collection[int], now: Collection[int], *, of: int, batch: BatchPlan | None) -> None:
        """On the first node: print and record that the next attempt begins without nodes, or with some again; the
        script of a SLURM job may bring back those that are missing."""
        gone, back = sorted({*before} - {*now}), sorted({*now} - {*before})
        size, missing = len(now), " ".join(str(node) for node in range(of) if node not in now)
        each: dict[str, Any] = {"nodes": size, "of": of, "gone": gone or None, "back": back or None}
        if batch:
            micro_batch, steps = shrink(batch.micro_batch, batch.accumulation, self.fallback().halvings)
            batch = replace(batch, micro_batch=micro_batch, accumulation=steps)
            each |= {"micro_batch": batch.micro_batch, "accumulation": batch.accumulation}
        shared, step = os.environ.get(variables.FAILURES), os.environ.get("SLURM_STEP_ID")
        if shared and step:
            with suppress(OSError), replacing(Path(shared, "missing-nodes")) as partial:
                partial.write_text(f"{step} {missing}\n")
        who = f"{size} of {of} nodes" + (f", without {missing}" if missing else "")
        self._notify(who + (f": batch {batch.sentence('rank')}" if batch else ""))
        if gone:
            self._write("nodes_reduced", **each)
        else:
            self._write("nodes_restored", **each)

    def never_began(self, message: str, *, cause: str, exit_code: int) -> None:
        """On the first node: why there was not even a first attempt, or not the next one that was to come."""
        self._event("failure", cause=cause, message=message, exit_code=exit_code)

    def apply(self, decision: RunDecision) -> None:
        """On every node: put the memory fallback where the ranks find it."""
        if decision.action == "restart" and decision.fallback != self.fallback():
            write_json_atomic(self._folder.path / REMEDY_FILE, decision.fallback.as_dict())

    def clean_up(self) -> None:
        """After the last attempt, on the first node: delete what a save left that failed on one rank while others wrote
        on. Until the next start it would take the room that a full disk lacks."""
        with suppress(OSError, UsageError), self._folder.acquire():
            for line in tidy(self._folder):
                self._notify(line)

    def _event(self, kind: str, why: str = "", /, **details: Any) -> None:
        # Our ranks have ended, so it is another run that has the folder and refused ours. These are its events then.
        # Only one of ours that cannot be killed may have it still.
        if why != "process_unkillable" and trainer_of(self._folder.path):
            return
        self._write(kind, **details)

    def _write(self, kind: str, **details: Any) -> None:
        # A full disk is a reason to write less, not to end without a message.
        with suppress(OSError), EventLog(self._folder.events) as log:
            log.write(kind, **details)


def _line(failure: AttemptFailure, decision: RunDecision) -> str:
    """Who failed how, and what comes next: "rank 1 was killed (SIGKILL) after step 12: again from step 10 in 1 s"."""
    next_ = decision.why.removeprefix(f"{cause_named(failure.cause).title}: ")
    # Where the cause is unknown, the message is all that is known of it.
    return next_ if failure.message in next_ else f"{failure.message}: {next_}"


STUCK_S = 5.0
"""Seconds that a terminal may block before its output is dropped."""
# Of up to 64 KiB, which is what a pipe holds (pipe(7)): at most 1 MiB of output waits for a terminal.
_PIECES = 16
_END = b""


class AsyncLineWriter:
    """Writes lines one after the other, in a thread of its own.

    A terminal may take nothing for hours (Ctrl-S, a pager, a connection that is gone), while ranks have to be watched
    and started again. At the end of the `with` block lines that have not been taken are waited for, for `timeout_s`
    seconds."""

    def __init__(self, notify: Callable[[str], None], *, timeout_s: float) -> None:
        self._notify = notify
        self._timeout_s = timeout_s
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write_lines, name="line writer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.put(None)
        self._thread.join(timeout=self._timeout_s)

    def __call__(self, line: str) -> None:
        self._lines.put(line)

    def _write_lines(self) -> None:
        while (line := self._lines.get()) is not None:
            with suppress(OSError):  # no reader any more
                self._notify(line)


OutputFilters = Sequence[LineFormatter | NoiseFilter]


class PipeTee:
    """Copies a named pipe to stderr and to `copy`, byte by byte, so that progress bars stay alive.

    No writer is held up: what stderr has not taken after STUCK_S seconds (Ctrl-S, a pager, a connection that
    is gone) is left out there, and what does not fit on the disk in `copy`. A rank that waits would seem to hang.
    What stderr gets goes through `filters`, one after the other."""

    def __init__(self, pipe: Path, copy: IO[bytes] | None = None, *, filters: OutputFilters = ()) -> None:
        self._other = copy
        self._filters = filters
        # Held open for writing as well, so that the reader meets no end before the first worker has opened it.
        # In this order: a non-blocking open for reading needs no writer, and the one for writing then has a reader
        # (fifo(7)).
        self._read = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self._hold = os.open(pipe, os.O_WRONLY)
        os.set_blocking(self._read, True)
        self._screen: Queue[bytes] = Queue(maxsize=_PIECES)
        self._stuck = False
        self._copying = threading.Thread(target=self._copy, name="console relay", daemon=True)
        self._showing = threading.Thread(target=self._show, name="console", daemon=True)

    def __enter__(self) -> Self:
        self._copying.start()
        self._showing.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._hold)
        self._copying.join(timeout=STUCK_S)
        if not self._copying.is_alive():
            os.close(self._read)
        self._offer(_END, last=True)
        if not self._stuck:
            self._showing.join(timeout=STUCK_S)

    def _copy(self) -> None:
        while data := os.read(self._read, 65536):
            if self._other:
                with suppress(OSError):
                    self._other.write(data)
                    self._other.flush()
            for each in self._filters:
                data = each.feed(data)
            self._offer(data)
        rest = b""
        for each in self._filters:
            rest = each.feed(rest) + each.end()
        self._offer(rest)

    def _offer(self, data: bytes, *, last: bool = False) -> None:
        if not data and not last:
            return
        try:
            self._screen.put(data, timeout=0 if self._stuck else STUCK_S)
            self._stuck = False
        except Full:
            self._stuck = True

    def _show(self) -> None:
        while data := self._screen.get():
            with suppress(OSError):  # the terminal is gone
                write_stderr(data)


@contextmanager
def tee_output(file: IO[bytes], pipe: Path, echo: bool, filters: OutputFilters = ()) -> Iterator[IO[bytes]]:
    """Where the agent and its workers write: `file`, or with `echo` a pipe that is copied to it and, through
    `filters`, to stderr."""
    if not echo:
        yield file
        return
    os.mkfifo(pipe)
    with PipeTee(pipe, file, filters=filters), pipe.open("wb", buffering=0) as sink:
        yield sink
