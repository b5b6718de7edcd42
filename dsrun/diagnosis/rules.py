"""The causes of failures and the signs they are known by, from rules.toml."""

import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

from dsrun.datafiles import toml_beside
from dsrun.findings.finding import Level
from dsrun.messages import Message

NextStep = Literal["restart", "shrink", "resume", "stop"]
"""What the supervisor does: start again, start again with less memory, leave to be resumed, or stop."""

SignWeight = Literal["root", "general", "unknown", "guess", "consequence", "exit"]
"""How much a sign says: the cause itself; words that several causes share, so that a root in the same log explains
them; an exception that no rule knows; no more than likely; what a rank suffers when another one fails; only that a
process failed."""


@dataclass(frozen=True, kw_only=True)
class CauseSign:
    """One way in which a cause shows in a log, within one line.

    One of `has` stands in the line letter by letter, which is what the whole log is searched for; then `pattern` must
    match, `unless` must not, and `near` must be found in the line or a few kilobytes before it. A `lasting` sign counts
    although the run ended well; a `retried` one is over with the next healthy step; an `own` one is a line of dsrun's
    and counts only in logs that name it. Where `pattern` has groups named `more` and `than`, the first must be the
    greater number. `means` and `fix` replace the cause's where this sign tells more."""

    has: tuple[str, ...]
    pattern: str = ""
    unless: str | None = None
    near: str = ""
    weight: SignWeight = "root"
    lasting: bool = False
    retried: bool = False
    own: bool = False
    means: str = ""
    fix: str = ""

    def place_in(self, line: str, before: Callable[[], str]) -> int | None:
        """Where `line` shows it, None where it does not; `before` gives the text that leads to the line."""
        word = next((word for word in self.has if word in line), None)
        if word is None:
            return None
        match = self._pattern.search(line)
        if not match or (self.unless and re.search(self.unless, line)):
            return None
        if "more" in match.groupdict() and int(match["more"]) <= int(match["than"]):
            return None
        if self.near and not re.search(self.near, line) and not re.search(self.near, before()):
            return None
        return match.start() if match.end() > match.start() else line.index(word)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(self.pattern)


@dataclass(frozen=True, kw_only=True)
class FailureCause:
    """A reason why a run stops: its stable code, what it is in a few words, what that means, and what repairs it.

    `fix` may name dsrun's flags; `other_fix` is for logs of other launchers, where that would not help. `faulty_node`:
    it is evidence against the node, which a requeued job avoids; `suspect_node`: it is so if it comes there again.
    `general`: it is what the words of an error that no rule knows say, which the supervisor takes as unknown.
    Where `within` is found in the log, its signs are those of `within_cause`."""

    code: str
    then: NextStep
    title: str
    means: str
    fix: str
    other_fix: str = ""
    level: Level = "error"
    general: bool = False
    within: str = ""
    within_cause: str = ""
    faulty_node: bool = False
    suspect_node: bool = False
    signs: tuple[CauseSign, ...] = ()

    @property
    def transient(self) -> bool:
        """Whether the same run, started again, may well go on."""
        return self.then == "restart"


UNKNOWN = FailureCause(
    code="", then="restart", title=Message("the workers failed"), means=Message("no rule matches the log"), fix=""
)
LOST_PEER = ("nccl_network", "nccl_timeout", "rendezvous_timeout")
"""Causes that a rank also names when another one has failed."""
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGABRT, signal.SIGFPE)
"""Signals for a fault of the program's own."""
_TEXTS = frozenset({"title", "means", "fix", "other_fix"})


@cache
def causes() -> Mapping[str, FailureCause]:
    """Every cause by its code, in the file's order. The tests check the file: here a wrong key is a TypeError."""
    entries = toml_beside(__file__)["cause"]
    found = (
        FailureCause(signs=tuple(_sign(**sign) for sign in entry.pop("sign", ())), **_worded(entry))
        for entry in entries
    )
    return {cause.code: cause for cause in found}


def _sign(*, has: str | list[str], **others: Any) -> CauseSign:
    return CauseSign(has=(has,) if isinstance(has, str) else tuple(has), **_worded(others))


def _worded(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry whose texts can be translated."""
    return {name: Message(value) if name in _TEXTS else value for name, value in entry.items()}


def cause_named(code: str) -> FailureCause:
    """The cause of that code; UNKNOWN, that a restart may help, where there is none."""
    return causes().get(code, UNKNOWN)
