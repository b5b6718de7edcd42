"""A check and its result, for `doctor`, `certify` and `audit`; checks run side by side, each with a time limit."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dsrun.errors import one_line
from dsrun.findings.finding import Finding, finding_of, worst_first
from dsrun.findings.show import CheckStatus, status_of


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

    The threads are daemons: one that hangs in the kernel does not keep the process from ending.
    """
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
