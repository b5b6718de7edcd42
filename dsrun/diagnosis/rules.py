"""The causes of failures and the signs they are known by, from rules.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from dsrun.findings import Level

Then = Literal["restart", "shrink", "resume", "stop"]
"""What the supervisor does: start again, start again with less memory, leave to be resumed, or stop."""

Weight = Literal["root", "general", "guess", "unknown", "consequence"]
"""How much a sign says: the cause itself; words that several causes share, so that a root in the same log explains
them; no more than likely; an exception that no rule knows; what a rank suffers when another one fails."""


@dataclass(frozen=True, kw_only=True)
class Sign:
    """One way in which a cause shows in a log, within one line.

    `has` stands in the line letter by letter, which is what the whole log is searched for; then `pattern` must match,
    `unless` must not, and `near` must be found in the line or a few kilobytes before it. A `lasting` sign counts
    although the run ended well.
    """

    has: str
    pattern: str = ""
    unless: str | None = None
    near: str = ""
    weight: Weight = "root"
    lasting: bool = False

    def matches(self, line: str, before: Callable[[], str]) -> bool:
        """Whether `line` shows it; `before` gives the text that leads to it."""
        if self.has not in line or not re.search(self.pattern, line) or (self.unless and re.search(self.unless, line)):
            return False
        return bool(re.search(self.near, line) or re.search(self.near, before()))


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A reason why a run stops: its stable code, what it is in a few words, what that means, and what repairs it."""

    code: str
    then: Then
    title: str
    means: str
    fix: str
    level: Level = "error"
    signs: tuple[Sign, ...] = ()

    @property
    def transient(self) -> bool:
        """Whether the same run, started again, may well go on."""
        return self.then == "restart"


UNKNOWN = Cause(code="", then="restart", title="the workers failed", means="no rule matches the log", fix="")


@cache
def causes() -> Mapping[str, Cause]:
    """Every cause by its code, in the file's order. The tests check the file: here a wrong key is a TypeError."""
    entries = tomllib.loads(files("dsrun.diagnosis").joinpath("rules.toml").read_text(encoding="utf-8"))["cause"]
    found = (Cause(signs=tuple(Sign(**sign) for sign in entry.pop("sign", ())), **entry) for entry in entries)
    return {cause.code: cause for cause in found}


def cause_named(code: str) -> Cause:
    """The cause of that code; UNKNOWN, that a restart may help, where there is none."""
    return causes().get(code, UNKNOWN)
