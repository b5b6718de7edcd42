"""Which records of a run are messages: pure, from the ledgers and the supervisor's last words."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from dsrun.errors import EXIT_INTERRUPTED, EXIT_RESUME
from dsrun.events import kind_of
from dsrun.notifications.notification import Notification, NotificationKind, NotifiedCause, RunFacts
from dsrun.runs.records import step_of, utc_now, whole

INTERVAL_S = 60.0
"""At most one message of a kind in so many seconds: a run that fails again and again must not flood anybody."""
_HUNG, _NAN, _KILLED = "rank_hung", "nan_loss", "run_killed"


@dataclass(frozen=True, kw_only=True)
class SupervisorEnd:
    """How the supervisor ended: its exit code, its last line, and the log that it names; `stopped`: the batch script
    had asked the program itself to stop, whose exit code says what it likes."""

    exit_code: int
    message: str | None = None
    log: str | None = None
    stopped: bool = False


class NotificationRules:
    """Turns what happens to a run into messages. A failure is told when it is known what follows: a restart, or the
    end."""

    def __init__(self, facts: RunFacts, *, requeue: int = 0, external: bool = False) -> None:
        self._facts = facts
        self._external = external
        self._requeue = requeue
        self._failure: Mapping[str, Any] = {}
        self._step: int | None = None
        self._max_steps: int | None = None
        self._loss: float | None = None
        self._stopped = False
        self._saved = ""

    def begin(self) -> list[Notification]:
        """What there is to tell before anything has happened."""
        return [self._message("requeue", utc_now(), requeue=self._requeue)] if self._requeue else []

    def metrics(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Take in lines of metrics.jsonl, for step and loss."""
        for record in records:
            self._step = self._step if (step := step_of(record)) is None else step
            if isinstance(record.get("loss"), float):
                self._loss = record["loss"]

    def event(self, record: Mapping[str, Any]) -> list[Notification]:
        """The messages about a line of events.jsonl."""
        if (step := whole(record.get("step"))) is not None:
            self._step = step
        if (most := whole(record.get("max_steps"))) is not None:
            self._max_steps = most
        when = str(record.get("time") or utc_now())
        kind, detail = kind_of(record), str(record.get("message") or "")
        if kind.name == "checkpoint_end":
            self._saved = str(record.get("path") or "")
        if kind.is_failure and kind.final:
            self._failure = record
        if kind.over == "stopped":
            self._stopped = True
            detail = _signal(record) + (f"; saved {self._saved}" if self._saved else "")
        if kind.name == "restart":
            return [self._restart(record, when)]
        return [self._message(cast(NotificationKind, kind.notify), when, detail=detail)] if kind.notify else []

    def end(self, end: SupervisorEnd | None) -> list[Notification]:
        """The messages about the end; None where the supervisor ended without a word."""
        now = utc_now()
        if end is None:
            killed = NotifiedCause.of(_KILLED)
            return [self._message("failure", now, cause=killed, detail="the supervisor ended without a result")]
        if end.exit_code == 0:
            return [self._message("finish", now, exit_code=0)]
        if end.exit_code == EXIT_RESUME or end.stopped:
            return [] if self._stopped else [self._message("preemption", now, detail=end.message or "")]
        if end.exit_code == EXIT_INTERRUPTED:
            return []  # by whoever sits before it
        told = self._about_failure("failure", now)
        return [replace(told, detail=told.detail or end.message or "", exit_code=end.exit_code, log=end.log)]

    def _restart(self, record: Mapping[str, Any], when: str) -> Notification:
        code = self._failure.get("cause")
        kind: NotificationKind = "hang" if code == _HUNG else "nan" if code == _NAN else "restart"
        told = self._about_failure(kind, when)
        self._failure = {}
        return replace(told, attempt=whole(record.get("attempt")))

    def _about_failure(self, kind: NotificationKind, when: str) -> Notification:
        """A message about the last failure, with all that the supervisor knows of it."""
        known = self._failure
        cause = NotifiedCause.of(known.get("cause"), external=self._external)
        found = self._message(kind, when, cause=cause, rank=whole(known.get("rank")))
        found = replace(found, detail=str(known.get("message") or ""), exit_code=whole(known.get("exit_code")))
        return replace(found, step=whole(known.get("step")) or found.step)

    def _message(self, kind: NotificationKind, when: str, **more: Any) -> Notification:
        known = {"step": self._step, "max_steps": self._max_steps, "loss": self._loss}
        return Notification(kind=kind, facts=self._facts, time=when, **{**known, **more})


def _signal(record: Mapping[str, Any]) -> str:
    """ "SIGTERM to rank 3 on gpu07"."""
    rank, host = whole(record.get("rank")), record.get("signalled_host")
    name = str(record.get("signal") or "a signal")
    return name if rank is None else f"{name} to rank {rank}" + (f" on {host}" if host else "")


class RateLimit:
    """Lets one message of a kind through in INTERVAL_S seconds, and counts the others for the next one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[str, float] = {}
        self._omitted: dict[str, int] = {}

    def passed(self, messages: Iterable[Notification]) -> list[Notification]:
        """Those of `messages` that are to be sent now."""
        found = []
        for message in messages:
            now = self._clock()
            if message.kind in self._last and now - self._last[message.kind] < INTERVAL_S:
                self._omitted[message.kind] = self._omitted.get(message.kind, 0) + 1
                continue
            self._last[message.kind] = now
            found.append(replace(message, omitted=self._omitted.pop(message.kind, 0)))
        return found
