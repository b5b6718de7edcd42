"""The causes of failures and the signs they are known by, from rules.toml.

`python -m dsrun.diagnosis.rules` prints the generated part of docs/diagnose.md; with the argument docs/diagnose.md it
replaces the text between the markers of that file.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import Any, Literal, get_args

from dsrun.docpage import GeneratedPart, table
from dsrun.findings import Level

Then = Literal["restart", "shrink", "resume", "stop"]
"""What the supervisor does: start again, start again with less memory, leave to be resumed, or stop."""

Weight = Literal["root", "general", "guess", "unknown", "consequence"]
"""How much a sign says: the cause itself; words that several causes share, so that a root in the same log explains
them; no more than likely; an exception that no rule knows; what a rank suffers when another one fails."""


@dataclass(frozen=True)
class Sign:
    """One way in which a cause shows in a log, within one line.

    `has` stands in the line letter by letter, which is what the whole log is searched for; then `pattern` must match,
    `unless` must not, and `near` must be found in the line or a few kilobytes before it. Empty expressions ask for
    nothing. A `lasting` sign counts although the run ended well.
    """

    has: str
    pattern: str
    unless: str
    near: str
    weight: Weight
    lasting: bool

    @cached_property
    def _expressions(self) -> tuple[re.Pattern[str], re.Pattern[str] | None, re.Pattern[str]]:
        return (re.compile(self.pattern), re.compile(self.unless) if self.unless else None, re.compile(self.near))

    def matches(self, line: str, before: Callable[[], str]) -> bool:
        """Whether `line` shows it; `before` gives the text that leads to it."""
        pattern, unless, near = self._expressions
        if self.has not in line or not pattern.search(line) or (unless and unless.search(line)):
            return False
        return bool(near.search(line) or near.search(before()))


@dataclass(frozen=True)
class Cause:
    """A reason why a run stops: its stable code, what it is in a few words, what that means, and what mends it."""

    code: str
    level: Level
    then: Then
    title: str
    means: str
    fix: str
    signs: tuple[Sign, ...]

    @property
    def transient(self) -> bool:
        """Whether the same run, started again, may well go on."""
        return self.then == "restart"


# A shorter word would stand in every line.
SHORTEST = 3

UNKNOWN = Cause("", "error", "restart", "the workers failed", "nothing in the log is known to dsrun", "", ())


@lru_cache(maxsize=1)
def causes() -> Mapping[str, Cause]:
    """Every cause by its code, in the file's order."""
    text = files("dsrun.diagnosis").joinpath("rules.toml").read_text(encoding="utf-8")
    return {cause.code: cause for cause in parse(text)}


def cause_named(code: str) -> Cause:
    """The cause of that code; one that nothing is known of, and that a restart may help, where there is none."""
    return causes().get(code, UNKNOWN)


def parse(text: str) -> Iterator[Cause]:
    """The causes of a rules.toml. Raises ValueError for a key that is missing, unknown or twice, and a bad pattern."""
    seen: set[str] = set()
    for entry in tomllib.loads(text)["cause"]:
        found = _cause(entry)
        if found.code in seen:
            raise ValueError(f"cause {found.code} is there twice")
        seen.add(found.code)
        yield found


def _cause(table: dict[str, Any]) -> Cause:
    code = table.get("code", "?")
    _only(code, table, {"code", "level", "then", "title", "means", "fix", "sign"}, optional={"sign", "level"})
    level = table.get("level", "error")
    if level not in get_args(Level) or table["then"] not in get_args(Then):
        raise ValueError(f"cause {code}: level {level}, then {table['then']}")
    signs = tuple(_sign(code, sign) for sign in table.get("sign", ()))
    return Cause(code, level, table["then"], table["title"], table["means"], table["fix"], signs)


def _sign(code: str, table: dict[str, Any]) -> Sign:
    optional = {"pattern", "unless", "near", "weight", "lasting"}
    _only(code, table, {"has"} | optional, optional)
    weight = table.get("weight", "root")
    if weight not in get_args(Weight) or len(table["has"]) < SHORTEST:
        raise ValueError(f"cause {code}: weight {weight}, has {table['has']!r}")
    texts = {key: table.get(key, "") for key in ("pattern", "unless", "near")}
    return Sign(has=table["has"], weight=weight, lasting=table.get("lasting", False), **texts)


def _only(code: str, table: dict[str, Any], known: set[str], optional: set[str]) -> None:
    wrong = (set(table) - known) | (known - optional - set(table))
    if wrong:
        raise ValueError(f"cause {code}: {', '.join(sorted(wrong))} unknown or missing")


_THEN = {
    "restart": "starts again",
    "shrink": "starts again with less memory",
    "resume": "ends with 75",
    "stop": "stops",
}


def markdown() -> str:
    """One row a cause: code, what it means, what helps, and what the supervisor does."""
    rows = (
        (f"`{cause.code}`", f"{cause.title}: {cause.means}", cause.fix, _THEN[cause.then])
        for cause in causes().values()
        if cause.level != "info"
    )
    return table(("cause", "what it means", "what helps", "the supervisor"), rows) + "\n"


PART = GeneratedPart("dsrun.diagnosis.rules", markdown)


if __name__ == "__main__":
    PART.main(sys.argv[1:])
