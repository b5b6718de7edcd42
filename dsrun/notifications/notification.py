"""What is told about a run: a message, its text and its JSON; and which records of a run are messages: pure, from the
ledgers and the supervisor's last words."""

import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self, cast

from dsrun.datafiles import SubjectNames, evaluate, toml_beside
from dsrun.diagnosis.rules import cause_named
from dsrun.errors import EXIT_INTERRUPTED, EXIT_RESUME, LONGEST_MESSAGE
from dsrun.events import kind_of
from dsrun.runs.records import plain, step_of, utc_now, whole
from dsrun.system.terminal.display import figure, printable
from dsrun.system.terminal.secrets import without_tokens

VERSION = 1
_TABLE = toml_beside(__file__)

NotificationKind = Literal["finish", "failure", "nan", "hang", "restart", "preemption", "requeue"]


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What holds for all messages of one supervisor: `name` is the model, or the program that runs."""

    run: str
    name: str
    host: str
    job_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class NotifiedCause:
    """A cause of `dsrun.diagnosis.rules`, as far as the supervisor knows it."""

    code: str
    title: str = ""
    fix: str = ""

    @classmethod
    def of(cls, code: str | None, *, external: bool = False) -> Self | None:
        """The cause of that code, with a fix without dsrun's flags for an `external` program; None for none."""
        if not code or code == "none":
            return None
        known = cause_named(code)
        return cls(code=code, title=known.title if known.code else "", fix=(external and known.other_fix) or known.fix)


@dataclass(frozen=True, kw_only=True)
class Notification:
    """One message. `step` of `max_steps` steps are done, `loss` is the last logged one, `rank` the one that failed
    first, `detail` one line about it, `log` where more is written, `omitted` how many messages of this kind were left
    out since the last one."""

    kind: NotificationKind
    facts: RunFacts
    time: str
    step: int | None = None
    max_steps: int | None = None
    loss: float | None = None
    cause: NotifiedCause | None = None
    rank: int | None = None
    detail: str = ""
    log: str | None = None
    exit_code: int | None = None
    attempt: int | None = None
    requeue: int | None = None
    omitted: int = 0

    @property
    def headline(self) -> str:
        """What has happened, in one line without a full stop."""
        return _clean(f"{self.facts.name} {self._told('headline')}", 300)

    @property
    def next(self) -> str:
        """What to do now; "" for nothing."""
        return self._told("next")

    def _told(self, table: str) -> str:
        """The text of a table of notification.toml for this kind of message; "" for none."""
        return str(evaluate(_TABLE[table].get(self.kind, "''"), self._names()))

    def _names(self) -> SubjectNames:
        return SubjectNames(self, _TABLE["terms"], figure=figure, quote=shlex.quote)

    def lines(self) -> list[tuple[str, str]]:
        """The facts below the headline, named, in the order in which a reader needs them."""
        names = self._names()
        found = ((name, evaluate(value, names)) for name, value in _TABLE["lines"].items())
        return [(name, _clean(value)) for name, value in found if value]

    def text(self) -> str:
        return "\n".join([self.headline, *(f"{name}: {value}" for name, value in self.lines())])

    def as_dict(self) -> dict[str, Any]:
        """The JSON of a webhook and of a command's stdin; docs/notify.md lists its keys."""
        own = {key: value for key, value in asdict(self).items() if key not in ("facts", "kind", "time")}
        own = {key: _clean(value) if isinstance(value, str) else value for key, value in own.items()}
        first = {"version": VERSION, "kind": self.kind, "time": self.time, "text": self.headline}
        return plain({**first, **asdict(self.facts), **own, "next": self.next})


def _clean(text: str, most: int = LONGEST_MESSAGE) -> str:
    """One line without control characters and access tokens, not too long."""
    text = without_tokens(printable(" ".join(text.split())))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def sample(facts: RunFacts, time: str) -> Notification:
    """What --dry-run shows: a failure, which has all there is to tell."""
    return Notification(
        kind="failure",
        facts=facts,
        time=time,
        step=120,
        max_steps=1000,
        loss=1.234,
        cause=NotifiedCause.of("cuda_oom"),
        rank=3,
        detail="an example, which --dry-run does not send",
        exit_code=1,
        attempt=0,
    )


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
