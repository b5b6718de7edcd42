"""A rank's ties to its supervisor: heartbeat, progress, requests to stop, and the report of a failure."""

import faulthandler
import hashlib
import json
import logging
import os
import signal
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsrun.diagnosis.classify import classify
from dsrun.diagnosis.rules import cause_named
from dsrun.errors import DsrunError, UsageError, one_line
from dsrun.runs.heartbeat import HeartbeatWriter, StopRequest, read_stop_file, write_stop_file
from dsrun.system import variables
from dsrun.system.files import replacing

logger = logging.getLogger(__name__)

# A rank that waits for others in C++ code runs no Python handler; before training it then leaves without one.
PATIENCE_SECONDS = 2.0
# The same once nothing is left to save, as in a long export: the least that schedulers wait until they kill is 30 s.
KEPT_PATIENCE_SECONDS = 10.0
# A scheduler may signal a whole process tree, whose launcher forwards the signal: one request, two signals.
SAME_REQUEST_SECONDS = 1.0


@dataclass
class ProcessProgress:
    """How far this process is: optimizer steps done, the step of the newest checkpoint, and the samples per forward
    pass; each None while there is none."""

    step: int | None = None
    saved: int | None = None
    micro_batch: int | None = None


def explain_failure(error: BaseException) -> tuple[int, str]:
    if isinstance(error, DsrunError):
        return error.exit_code, str(error)
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT, "interrupted"
    if isinstance(error, SystemExit):
        return int(error.code or 0), "ended by a signal"
    cause = cause_of(error)
    advice = f" ({cause_named(cause).fix})" if cause else ""
    message = one_line(error) if str(error).strip() else ""
    return 1, f"{type(error).__name__}: {message}{advice}"


def record_failure(error: BaseException, *, rank: int, log: Path | None, progress: ProcessProgress) -> tuple[int, str]:
    """Write the failure where the launcher looks for it; returns `explain_failure(error)`."""
    happened = time.time()
    code, message = explain_failure(error)
    if log is not None:
        logger.error("rank %d failed", rank, exc_info=error)
    cause, consequence = _diagnosed(error)
    facts = {
        "rank": rank,
        "exit_code": code,
        "message": message,
        "time": happened,
        "log": str(log) if log else None,
        "expected": isinstance(error, DsrunError),
        "cause": cause,
        # The rank lost its peers: whoever failed before it knows why.
        "consequence": consequence,
        "trace": trace_of(error),
        "step": progress.step,
        "micro_batch": progress.micro_batch,
        "rollback": bool(getattr(error, "rollback", False)),
    }
    _write(f"rank-{rank}.json", facts)
    return code, message


def record_interruption(step: int | None = None, path: str | None = None) -> None:
    """Let the launcher know that this run left because it was asked to: after optimizer step `step`, which the
    checkpoint `path` of the run folder holds, or before training (None)."""
    _write("interrupted.json", {"step": step, "path": path})


def cause_of(error: BaseException) -> str | None:
    """The code of docs/diagnose.md for `error`, None where nothing is known of it."""
    return _diagnosed(error)[0]


def _diagnosed(error: BaseException) -> tuple[str | None, bool]:
    """The code, and whether such an error only follows from another rank's."""
    if isinstance(error, DsrunError):
        return error.cause, False
    if not isinstance(error, Exception):
        return None, False  # ended from outside
    diagnosis = classify("".join(traceback.format_exception(error)))
    return (diagnosis.cause.code, diagnosis.weight == "consequence") if diagnosis else (None, False)


def trace_of(error: BaseException) -> str:
    """A digest of where `error` comes from: the same for the same crash in another attempt, whatever the addresses and
    numbers in its message."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{frame.filename}:{frame.name}:{frame.lineno}" for frame in frames]
    return hashlib.sha256("\n".join([type(error).__qualname__, *places]).encode()).hexdigest()


def _write(name: str, facts: dict[str, Any]) -> None:
    folder = os.environ.get(variables.FAILURES)
    if not folder:
        return
    try:
        with replacing(Path(folder) / name) as partial:
            partial.write_text(json.dumps(facts))
    except OSError:
        # The launcher is gone, and its folder with it; the failure is in the log.
        logger.exception("could not write %s", Path(folder) / name)


class PreemptionHandler:
    """What this rank knows of a request to stop. The ranks agree on it in the sum that they form before every step."""

    def __init__(self, signals: tuple[signal.Signals, ...], file: Path | None, *, is_supervised: bool = False) -> None:
        self.signals = signals
        self.file = file
        # Then a second request is for the supervisor, which ends all processes of the run.
        self.is_supervised = is_supervised
        self.has_begun = False
        self.request: StopRequest | None = None
        self._kept: tuple[int, str] | None = None
        self._leaving = threading.Lock()
        self._rank: int | None = None
        self._pid = os.getpid()
        self._first_term: float | None = None
        self._mask: set[int] = set()

    @property
    def is_on(self) -> bool:
        """Whether any signal asks for it; the same on all ranks, as their environment is."""
        return bool(self.signals)

    @property
    def is_requested(self) -> bool:
        return self.request is not None

    @property
    def stopped_before_training(self) -> bool:
        """Whether this rank or, by the file, another one was asked while there was nothing to save yet."""
        stop_file_exists = self.file is not None and self.file.exists()
        return self.is_on and not self.has_begun and (self.is_requested or stop_file_exists)

    def install(self, rank: int | None = None) -> None:
        """Handle the signals from here on, as this rank; for the main thread."""
        self._rank = rank
        if not self.is_on:
            return
        self._pid = os.getpid()
        for each in self.signals:
            signal.signal(each, self._handle)
        self._watch_signals()

    def begin(self) -> None:
        """Training begins: from here on a signal waits for a moment at which all ranks can save and leave."""
        self.has_begun = True
        if self.is_on and self.request is None and self.file is not None:
            self.request = read_stop_file(self.file)

    def keep(self, step: int, path: str) -> None:
        """Training is over and the checkpoint `path` holds all of it: from here on this rank may leave at any time."""
        # Without a supervisor, which tells all ranks, the others would wait for this one.
        if self.is_supervised:
            self._kept = step, path

    def conclude(self) -> None:
        """The run is as good as done: it is not left any more."""
        with self._leaving:
            self._kept = None

    def _handle(self, signum: int, frame: Any) -> None:
        if os.getpid() != self._pid:
            # A process forked from this one, to tokenise for example: the request is not for it.
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
            return
        self._note(signal.Signals(signum).name)
        if not self.has_begun:
            # Not a failure: the next start does again what is lost.
            raise SystemExit(0)

    def _note(self, name: str) -> None:
        # The stop file may hold an earlier request: that of the rank or the supervisor that signals this one.
        known = read_stop_file(self.file) if self.file is not None else None
        self.request = self.request or known or StopRequest.now(name, self._rank)
        if self.file is not None:
            write_stop_file(self.file, self.request)

    def _watch_signals(self) -> None:
        """Have the interpreter write the number of each signal into a pipe, at once, and a thread read it."""
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        # A child would write into the same pipe: `Pool.terminate` sends SIGTERM to its processes. What is sent to one
        # that has not forgotten the pipe yet waits until it has.
        os.register_at_fork(
            before=self._block_signals,
            after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, self._mask),
            after_in_child=self._reset_in_child,
        )
        threading.Thread(target=self._watch, args=(read,), name="signals", daemon=True).start()

    def _block_signals(self) -> None:
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, self.signals)

    def _reset_in_child(self) -> None:
        with suppress(ValueError):
            signal.set_wakeup_fd(-1)
            # Python runs its handlers between two steps of its own: one that comes just before a call that waits would
            # have to wait with it, and the child of a pool outlive its SIGTERM by as long.
            for signum in self.signals:
                if signal.getsignal(signum) == self._handle:
                    signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _watch(self, pipe: int) -> None:
        while numbers := os.read(pipe, 64):
            for signum in numbers:
                if signum in self.signals:
                    self._on_signal(signum)

    def _on_signal(self, signum: int) -> None:
        """On the watching thread: what must happen also while the main thread is in C++ code."""
        self._note(signal.Signals(signum).name)
        now = time.monotonic()
        if signum == signal.SIGTERM and not self.is_supervised:
            if self._first_term is not None and now - self._first_term > SAME_REQUEST_SECONDS:
                # A second request. Nothing is torn: a checkpoint becomes visible only when it is whole.
                os._exit(128 + signum)
            self._first_term = self._first_term or now
        threading.Thread(target=self._exit_late, name="leaving", daemon=True).start()

    def _exit_late(self) -> None:
        time.sleep(KEPT_PATIENCE_SECONDS if self.has_begun else PATIENCE_SECONDS)
        with self._leaving:
            if not self.has_begun or self._kept:
                record_interruption(*(self._kept or ()))
                os._exit(0)


def handler_from_env(environ: Mapping[str, str]) -> PreemptionHandler:
    names = [f"SIG{name.strip()}" for name in environ.get(variables.SAVE_ON, "").split(",") if name.strip()]
    for name in names:
        if name not in signal.Signals.__members__:
            fix = "name signals without SIG, such as USR1,TERM"
            raise UsageError(f"{variables.SAVE_ON}: {name} is not a signal", fix=fix)
    file = environ.get(variables.STOP_FILE)
    return PreemptionHandler(
        tuple(signal.Signals[name] for name in names),
        Path(file) if file else None,
        is_supervised=is_supervised(environ),
    )


@dataclass
class RankContext:
    heart: HeartbeatWriter
    stopping: PreemptionHandler
    progress: ProcessProgress = field(default_factory=ProcessProgress)


def is_supervised(environ: Mapping[str, str]) -> bool:
    """Whether a supervisor watches this rank; it then records failures and restarts the run."""
    return variables.HEARTBEAT in environ


def show_stacks_in(log: Path | None) -> None:
    """Have SIGUSR2 write the stacks of all threads to `log`, None: to stderr. A rank that hangs in a collective answers
    too, as no Python code has to run for it."""
    # faulthandler keeps the descriptor and not the file, so that the descriptor must stay open.
    file = 2 if log is None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    faulthandler.register(signal.SIGUSR2, file=file, all_threads=True)
