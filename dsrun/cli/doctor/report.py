"""Results of checks as the table of `dsrun doctor`, and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from dsrun.doctor.check import Result, Status
from dsrun.findings.finding import Finding, Level
from dsrun.findings.translation import translated
from dsrun.messages import Message, joined
from dsrun.system.display import cells, counted, padded, printable, wrapped

COLOURS: dict[str, str] = {"PASS": "green", "WARN": "yellow", "FAIL": "red", "SKIP": "bright_black"}
_WORDS: dict[Level, str] = {"error": "FAIL", "warning": "WARN", "info": "PASS"}
_COUNTED: dict[Status, str] = {"pass": "passed", "warn": "warned", "fail": "failed", "skip": "skipped"}
_ARROW = "-> "
_NARROWEST = 30


class Line(NamedTuple):
    """A line of the table: its status word, "" for none, and the text after it."""

    word: str
    text: str


def as_json(results: Sequence[Result]) -> dict[str, Any]:
    """What `--format json` gives: the results in their order, and how many there are of each status."""
    counts = Counter(each.status for each in results)
    return {"checks": [each.as_dict() for each in results]} | {
        word: counts[status] for status, word in _COUNTED.items()
    }


def table(results: Sequence[Result], *, every: bool, columns: int | None = None) -> Iterator[Line]:
    """A line for each finding, below a problem what mends it, and the totals; with `every`, checks that do not apply,
    too. Texts are wrapped to a terminal of so many columns."""
    shown = [each for each in results if every or each.status != "skip"]
    titles = {each.check.code: translated(each.check.title) for each in shown}
    width = max(map(cells, titles.values()), default=0)
    indent = " " * (len("PASS  ") + width + 2)
    for result in shown:
        for place, found in enumerate(_problems(result) or result.findings):
            title = titles[result.check.code] if place == 0 else ""
            where = f"{translated(found.where)}: " if found.where else ""
            first, *others = _wrapped(printable(where + translated(found.message)), columns, len(indent))
            yield Line(_WORDS[found.level], f"{padded(title, width)}  {first}")
            if found.fix and found.level != "info":
                fix, *more = _wrapped(printable(translated(found.fix)), columns, len(indent) + len(_ARROW))
                others += [f"{_ARROW}{fix}", *(" " * len(_ARROW) + each for each in more)]
            yield from (Line("", indent + each) for each in others)
        if result.status == "skip":
            needs = translated(result.check.needs or Message("nothing to check here"))
            yield Line("SKIP", f"{padded(titles[result.check.code], width)}  {needs}")
    yield Line("", "")
    yield Line("", translated(summary(results, every=every)))


def _wrapped(text: str, columns: int | None, indent: int) -> list[str]:
    """The lines of a text in what is left of a terminal; a command, a path or an address stays whole."""
    if columns is None or columns - indent < _NARROWEST:
        return [text]
    return wrapped(text, columns - indent)


def _problems(result: Result) -> tuple[Finding, ...]:
    """The errors, then the warnings: what is fine beside them is not shown."""
    order: tuple[Level, ...] = ("error", "warning")
    return tuple(each for level in order for each in result.findings if each.level == level)


def summary(results: Sequence[Result], *, every: bool) -> Message:
    """The totals in words."""
    counts = Counter(each.status for each in results)
    parts = [
        Message("{number} passed", number=counts["pass"]),
        *([counted(counts["warn"], "warning")] if counts["warn"] else []),
        *([counted(counts["fail"], "failure")] if counts["fail"] else []),
    ]
    text = joined(", ", parts)
    if counts["skip"]:
        skipped = Message("{checks} not needed here", checks=counted(counts["skip"], "check"))
        text = joined("; ", [text, skipped if every else Message("{skipped} (--all lists them)", skipped=skipped)])
    return text
