"""What is told about a run: a message, its text and its JSON."""

import shlex
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from dsrun.datafiles import SubjectNames, evaluate, toml_beside
from dsrun.diagnosis.rules import cause_named
from dsrun.errors import LONGEST_MESSAGE
from dsrun.runs.records import plain
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
