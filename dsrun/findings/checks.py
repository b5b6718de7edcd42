"""A check and its result, for `doctor`, `certify` and `audit`; checks run side by side, each with a time limit. Their
results as a table for people, and as JSON."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dsrun.errors import one_line
from dsrun.findings.finding import Finding, finding_of, text_of, worst_first
from dsrun.findings.show import CheckStatus, status_of, status_width, status_word, table_lines
from dsrun.findings.translation import translated
from dsrun.messages import Message, joined
from dsrun.system.terminal.display import NARROWEST, cells, counted, fitted, padded


@dataclass(frozen=True)
class Check:
    """`look` yields what it finds: errors and warnings, each with what mends it, else one finding of level info that
    says what is fine; nothing where the check does not apply. `code` begins the codes of its findings; `needs` says
    what it applies to, where that is not everything: "needs a GPU"; `finds`, for the documentation, what may be
    wrong."""

    code: str
    title: str
    look: Callable[..., Iterable[Finding]]
    needs: str = ""
    finds: str = ""

    def broken(self, how: str, **values: Any) -> Finding:
        """What stands for the findings of a check that "crashed", of that `kind` and `error`, or "hangs" after so many
        `seconds`."""
        return finding_of(how, prefix=f"{self.code}_", **values)


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """What one check found, in `seconds`."""

    check: Check
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def status(self) -> CheckStatus:
        """The worst of its findings; "skip" where it does not apply."""
        return status_of(worst_first(self.findings)[0]) if self.findings else "skip"

    def as_dict(self) -> dict[str, Any]:
        findings = [each.as_dict() for each in self.findings]
        return {
            "check": self.check.code,
            "title": self.check.title,
            "status": self.status,
            "seconds": self.seconds,
            "findings": findings,
        }


def run_checks(checks: Sequence[Check], *about: Any, limit_s: float) -> tuple[CheckResult, ...]:
    """The results in the order of `checks`, whose `look` gets `about`. One that crashes, or does not end within
    `limit_s`, is a warning.

    The threads are daemons: one that hangs in the kernel does not keep the process from ending."""
    running = [_RunningCheck(check, about) for check in checks]
    deadline = time.monotonic() + limit_s
    return tuple(each.result(deadline, limit_s) for each in running)


class _RunningCheck:
    """A check in a thread of its own."""

    def __init__(self, check: Check, about: Sequence[Any]) -> None:
        self._check = check
        self._began = time.monotonic()
        self._result: CheckResult | None = None
        self._thread = threading.Thread(target=self._look, args=about, name=f"check {check.code}", daemon=True)
        self._thread.start()

    def _look(self, *about: Any) -> None:
        try:
            findings = tuple(self._check.look(*about))
        except Exception as error:  # whatever a strange machine makes of a check, the others are shown
            findings = (self._check.broken("crashed", kind=type(error).__name__, error=one_line(error)),)
        self._result = self._with(findings)

    def result(self, deadline: float, limit_s: float) -> CheckResult:
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return self._result or self._with((self._check.broken("hangs", seconds=limit_s),))

    def _with(self, findings: tuple[Finding, ...]) -> CheckResult:
        return CheckResult(check=self._check, findings=findings, seconds=round(time.monotonic() - self._began, 3))


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
