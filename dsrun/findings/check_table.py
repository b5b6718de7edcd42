"""Results of checks as a table for people, and as JSON."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from dsrun.findings.checks import CheckResult
from dsrun.findings.finding import Finding, text_of, worst_first
from dsrun.findings.show import CheckStatus, status_of, status_width, status_word, table_lines
from dsrun.findings.translation import translated
from dsrun.messages import Message, joined
from dsrun.system.terminal.display import cells, counted, padded
from dsrun.system.terminal.layout import NARROWEST, fitted

_COUNTED: dict[CheckStatus, str] = {"pass": "passed", "warn": "warned", "fail": "failed", "skip": "skipped"}


def as_json(results: Sequence[CheckResult]) -> dict[str, Any]:
    """What `--format json` gives: the results in their order, and how many there are of each status."""
    counts = Counter(each.status for each in results)
    return {"checks": [each.as_dict() for each in results]} | {
        word: counts[status] for status, word in _COUNTED.items()
    }


def result_lines(
    results: Sequence[CheckResult], *, every: bool, columns: int | None = None, of: Sequence[CheckResult] | None = None
) -> Iterator[str]:
    """A line for each finding, below a problem what mends it, and the totals (`of` other results, where a line stands
    for several); with `every`, checks that do not apply, too. Texts are wrapped to a terminal of so many columns."""
    shown = [each for each in results if every or each.status != "skip"]
    titles = {each.check.code: translated(each.check.title) for each in shown}
    width = max(map(cells, titles.values()), default=0)
    for result in shown:
        title = padded(titles[result.check.code], width)
        # What is fine beside problems is not shown.
        problems = [each for each in worst_first(result.findings) if each.level != "info"]
        for found in problems or result.findings:
            yield from _row(status_of(found), title, found, columns)
            title = " " * width
        if result.status == "skip":
            needs = translated(result.check.needs or text_of("check_total.nothing"))
            found = Finding(level="info", code=result.check.code, message=needs)
            yield from _row("skip", title, found, columns)
    yield ""
    yield fitted(translated(summary(of or results, every=every)), columns, hang=0)


def _row(status: CheckStatus, title: str, found: Finding, columns: int | None) -> Iterator[str]:
    """A row of the table: a finding beside its title, or below where it has no room."""
    beside = status_width() + 2 + cells(title) + 2
    room = None if columns is None else columns - beside
    first, *others = table_lines(found, room)
    if room is None or NARROWEST <= room >= max(map(cells, (first, *others))):
        yield f"{status_word(status)}  {title}  {first}"
        yield from (" " * beside + each for each in others)
    else:
        yield f"{status_word(status)}  {title}".rstrip()
        yield from (" " * 6 + each for each in table_lines(found, room + beside - 6))


def summary(results: Sequence[CheckResult], *, every: bool) -> Message:
    """The totals in words."""
    counts = Counter(each.status for each in results)
    parts = [
        text_of("check_total.passed", number=counts["pass"]),
        *([counted(counts["warn"], "warning")] if counts["warn"] else []),
        *([counted(counts["fail"], "failure")] if counts["fail"] else []),
        *([text_of("check_total.open", number=counts["open"])] if counts["open"] else []),
    ]
    text = joined(", ", parts)
    if counts["skip"]:
        skipped = text_of("check_total.not_needed", checks=counted(counts["skip"], "check"))
        text = joined("; ", [text, skipped if every else text_of("check_total.not_listed", skipped=skipped)])
    return text
