"""A check and its result; checks run side by side, each with a time limit."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dsrun.datafiles import toml_beside
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.errors import one_line
from dsrun.findings.finding import Finding, worst_first
from dsrun.findings.show import STATUSES, CheckStatus
from dsrun.findings.texts import finding_of

LIMIT_S = 8.0
"""Seconds until a check that does not end is given up: a dead network file system or a driver that hangs."""


@dataclass(frozen=True)
class DoctorCheck:
    """`look` yields what it finds: errors and warnings, each with what mends it, else one finding of level info that
    says what is fine; nothing where the check does not apply to this machine or job. `code` begins the codes of its
    findings; `needs` says what it applies to, where that is not everything: "needs a GPU"; `finds`, for the
    documentation, what may be wrong."""

    code: str
    title: str
    look: Callable[[MachineFacts, DoctorTarget], Iterable[Finding]]
    needs: str = ""
    finds: str = ""


TEXTS = toml_beside(__file__, "checks.toml")
"""Of each check, by code, in the order in which they are shown."""


def check_of(code: str, look: Callable[[MachineFacts, DoctorTarget], Iterable[Finding]]) -> DoctorCheck:
    return DoctorCheck(code=code, look=look, **TEXTS[code])


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """What one check found, in `seconds`."""

    check: DoctorCheck
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def status(self) -> CheckStatus:
        """The worst of its findings; "skip" where it does not apply."""
        return STATUSES[worst_first(self.findings)[0].level] if self.findings else "skip"

    def as_dict(self) -> dict[str, Any]:
        findings = [each.as_dict() for each in self.findings]
        return {
            "check": self.check.code,
            "title": self.check.title,
            "status": self.status,
            "seconds": self.seconds,
            "findings": findings,
        }


def run_checks(
    checks: Sequence[DoctorCheck], machine: MachineFacts, target: DoctorTarget, *, limit_s: float = LIMIT_S
) -> tuple[CheckResult, ...]:
    """The results in the order of `checks`. One that crashes, or does not end within `limit_s`, is a warning.

    The threads are daemons: one that hangs in the kernel does not keep the process from ending.
    """
    running = [_RunningCheck(check, machine, target) for check in checks]
    deadline = time.monotonic() + limit_s
    return tuple(each.result(deadline, limit_s) for each in running)


class _RunningCheck:
    """A check in a thread of its own."""

    def __init__(self, check: DoctorCheck, machine: MachineFacts, target: DoctorTarget) -> None:
        self._check = check
        self._began = time.monotonic()
        self._result: CheckResult | None = None
        self._thread = threading.Thread(
            target=self._look, args=(machine, target), name=f"check {check.code}", daemon=True
        )
        self._thread.start()

    def _look(self, machine: MachineFacts, target: DoctorTarget) -> None:
        try:
            findings = tuple(self._check.look(machine, target))
        except Exception as error:  # whatever a strange machine makes of a check, the others are shown
            findings = (self._broken("crashed", kind=type(error).__name__, error=one_line(error)),)
        self._result = self._with(findings)

    def result(self, deadline: float, limit_s: float) -> CheckResult:
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return self._result or self._with((self._broken("hangs", seconds=limit_s),))

    def _with(self, findings: tuple[Finding, ...]) -> CheckResult:
        return CheckResult(check=self._check, findings=findings, seconds=round(time.monotonic() - self._began, 3))

    def _broken(self, how: str, **values: Any) -> Finding:
        return finding_of(how, prefix=f"{self._check.code}_", **values)
