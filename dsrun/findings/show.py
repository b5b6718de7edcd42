"""How findings are laid out for people: the one place that every command takes its lines, words and colours from.

All of it is in the language of this process and without control characters. JSON has the findings themselves, and an
error that ends a command is English."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, get_args

from dsrun.errors import DsrunError, UsageError
from dsrun.findings.finding import LEVELS, Finding, Level, text_of
from dsrun.findings.translation import translated
from dsrun.messages import joined
from dsrun.system.terminal.display import cells, counted, padded, printable

CheckStatus = Literal["fail", "warn", "open", "pass", "skip"]
"""The word for a level in a table of checks, for a check that cannot tell, and for one that does not apply."""
STATUSES: dict[Level, CheckStatus] = {"error": "fail", "warning": "warn", "info": "pass"}
_COLOURS: dict[Level | CheckStatus, str] = {
    "error": "red", "warning": "yellow", "info": "cyan",
    "fail": "red", "warn": "yellow", "open": "cyan", "pass": "green", "skip": "bright_black",
}  # fmt: skip
OPEN = "_open"
"""Ends the code of a finding by which a check cannot tell."""
_INDENT = " " * 4
_ARROW = "-> "


class ShownFinding(NamedTuple):
    """The parts of a finding as they are shown."""

    level: str
    place: str
    message: str
    code: str
    fix: str

    @property
    def text(self) -> str:
        """`PLACE: MESSAGE [CODE]`"""
        return f"{f'{self.place}: ' if self.place else ''}{self.message} [{self.code}]"

    @property
    def line(self) -> str:
        """`PLACE: MESSAGE [CODE] (FIX)`"""
        return f"{self.text} ({self.fix})" if self.fix else self.text


def shown(finding: Finding) -> ShownFinding:
    """A finding in the language of this process."""
    level = translated(text_of(f"level.{finding.level}"))
    place, message, fix = (printable(translated(each)) for each in (finding.where, finding.message, finding.fix))
    return ShownFinding(level, place, message, finding.code, fix)


def in_english(finding: Finding) -> ShownFinding:
    """A finding as errors and logs have it."""
    return ShownFinding(finding.level, finding.where, str(finding.message), finding.code, str(finding.fix))


def finding_lines(findings: Iterable[Finding], *, places: bool = True, width: int | None = None) -> Iterator[str]:
    """`LEVEL PLACE: MESSAGE [CODE]` for each finding, its fix below; without `places`, where messages have them. With
    `width`, in lines of so many columns."""
    from dsrun.system.terminal.display import fitted  # not for advice, which is one line each

    for each in findings:
        part = shown(each)
        place = f" {part.place}" if places and part.place else ""
        text = fitted(f"{part.level}{place}: {part.message} [{part.code}]", width, hang=len(_INDENT))
        yield _coloured(part.level, each.level) + text.removeprefix(part.level)
        if part.fix:
            yield fitted(_INDENT + part.fix, width, hang=len(_INDENT))


def total_line(name: str, findings: Iterable[Finding]) -> str:
    """How many findings of each level there are about `name`."""
    counts = Counter(each.level for each in findings)
    numbers = {
        "error": counted(counts["error"], "error"),
        "warning": counted(counts["warning"], "warning"),
        "info": counted(counts["info"], "remark"),
    }
    parts = [numbers[level] for level in LEVELS if counts[level]]
    total = joined(", ", parts) if parts else text_of("total.none")
    return translated(text_of("total.line", name=name, total=total))


def status_of(finding: Finding) -> CheckStatus:
    """The status of a check that has found this."""
    return "open" if finding.code.endswith(OPEN) else STATUSES[finding.level]


def status_word(status: CheckStatus) -> str:
    """The word for what a check has found, coloured, in so many columns as the widest of them takes."""
    word = translated(text_of(f"status.{status}"))
    return _coloured(word, status) + padded("", status_width() - cells(word))


def status_width() -> int:
    """The columns of a status word."""
    return max(cells(translated(text_of(f"status.{each}"))) for each in get_args(CheckStatus))


def table_lines(finding: Finding, columns: int | None) -> Iterator[str]:
    """`PLACE: MESSAGE`, and below a problem `-> FIX`, in a column of a table that is so wide; None: of any width."""
    from dsrun.system.terminal.display import fitted

    part = shown(finding)
    yield from fitted(f"{part.place}: {part.message}" if part.place else part.message, columns, hang=0).split("\n")
    if part.fix and finding.level != "info":
        yield from fitted(_ARROW + part.fix, columns, hang=len(_ARROW)).split("\n")


def refusal(errors: Sequence[Finding], *, before: str = "", kind: type[DsrunError] = UsageError) -> DsrunError:
    """What ends a command because of these findings: one line in English, after `before`, each with its fix."""
    first, *others = map(in_english, errors)
    if not others:
        return kind(before + first.text, fix=first.fix or None)
    return kind(before + "; also: ".join(each.line for each in (first, *others)))


def _coloured(word: str, level: Level | CheckStatus) -> str:
    """Colours appear on a terminal only: click drops them elsewhere, and leaves NO_COLOR (no-color.org) to us."""
    if os.environ.get("NO_COLOR"):
        return word
    import click  # not where findings end a command, or are counted

    return click.style(word, fg=_COLOURS[level])
