"""A log of another trainer, or of a job, as the status and the history of a run: what the monitor shows of it."""

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dsrun.diagnosis.diagnose import RunVerdict, of_logs
from dsrun.errors import UsageError
from dsrun.monitoring.run_status import RunState, RunStatus, recent_step_s
from dsrun.monitoring.trainer_logs.parser import TrainerLog
from dsrun.runs.reader import RunHistory
from dsrun.runs.records import utc_now
from dsrun.runs.tail import FileTail

BACKLOG = 2 << 20
"""Of a long log, and of what is added between two looks, so many bytes at the end are read: a second or two."""
SILENT_S = 300.0
"""A log to which nothing was written for so long may be that of a trainer that is gone."""
_END = 256 << 10
_QUIET_S = 20.0
_LONGEST_LINE = 1 << 20


class LogReader:
    """The figures of a log that grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = TrainerLog()
        self._tail = FileTail(path, whole=BACKLOG, tail=BACKLOG, most=BACKLOG)
        self._torn = b""
        self._verdict: tuple[int, RunVerdict | None] = (-1, None)

    def read(self) -> None:
        """Take in what was added. Raises UsageError where the file cannot be read."""
        try:
            added, is_new = self._tail.read()
        except OSError as error:
            raise UsageError(
                f"{self.path} cannot be read: {error.strerror}", fix="name a log that you may read"
            ) from error
        if is_new:
            self.log, self._torn = TrainerLog(), b""
        self.feed(added, now=None if is_new else utc_now())

    def feed(self, added: bytes, *, now: str | None) -> None:
        """Take further bytes in; a bar that has not been ended by a line break counts."""
        *lines, self._torn = (self._torn + added).split(b"\n")
        text = [line.decode("utf-8", "replace") for line in lines]
        if b"\r" in self._torn:
            bar, _, self._torn = self._torn.rpartition(b"\r")
            # tqdm begins a bar with the carriage return: what follows the last one may be half a bar.
            text.append(bar.decode("utf-8", "replace"))
        if len(self._torn) > _LONGEST_LINE:
            self._torn = b""
        self.log.feed(text, now)

    def end(self) -> None:
        """There will be no further lines: the last one counts, ended or not."""
        self.log.feed([self._torn.decode("utf-8", "replace")], None)
        self._torn = b""

    def status(self, now: float | None = None) -> RunStatus:
        """The status that the log shows, by when it was last written to."""
        written = None
        with suppress(OSError):
            written = self.path.stat().st_mtime
        silent_s = None if written is None else max(0.0, (time.time() if now is None else now) - written)
        found = status_of_log(self.log, self.path, silent_s=silent_s)
        if found.state in ("training", "starting", "silent") and (silent_s or 0.0) > _QUIET_S:
            verdict = self._diagnosed()
            if verdict is not None and verdict.failed:
                return replace(found, state="failed", cause=verdict.cause.code, message=verdict.evidence, eta_s=None)
        return found

    def _diagnosed(self) -> RunVerdict | None:
        """The verdict over the end of the log, found once for each of its lengths."""
        if self._verdict[0] != self._tail.offset:
            verdict = None
            with suppress(OSError, UsageError), self.path.open("rb") as file:
                file.seek(max(0, self._tail.offset - _END))
                verdict = of_logs({str(self.path): file.read(_END)})
            self._verdict = (self._tail.offset, verdict)
        return self._verdict[1]


def status_of_log(log: TrainerLog, path: Path, *, silent_s: float | None = None, is_over: bool = False) -> RunStatus:
    """The status that the lines of a log show; `is_over` where there will be no more."""
    state: RunState = "training" if log.step is not None else "starting"
    is_done = log.step is not None and log.step == log.max_steps
    if log.has_ended or (is_done and (is_over or (silent_s or 0.0) > _QUIET_S)):
        state = "finished"
    elif is_over or (silent_s or 0.0) > SILENT_S:
        state = "silent"
    figures: dict[str, Any] = {name: log.figures.get(name) for name in _LOGGED}
    if not log.loss_is_finite:
        figures |= {"loss": None, "loss_is_finite": False}
    step_s = log.step_s or recent_step_s(log.steps)
    left = log.max_steps - log.step if log.max_steps is not None and log.step is not None else None
    return RunStatus(
        path=path,
        state=state,
        step=log.step,
        max_steps=log.max_steps,
        **figures,
        step_s=step_s,
        eta_s=left * step_s if left is not None and step_s is not None and state == "training" else None,
        silent_s=silent_s,
    )


def history_of_log(log: TrainerLog, path: Path) -> RunHistory:
    """The curves that the lines of a log show."""
    return RunHistory(path=path, steps=tuple(log.steps), evaluations=tuple(log.evaluations))


_LOGGED = ("epoch", "loss", "lr", "grad_norm", "tokens_per_s", "samples_per_s", "mfu")
