"""The checks of `dsrun doctor`: their texts, and how long they may take."""

from collections.abc import Callable, Iterable

from dsrun.datafiles import toml_beside
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.findings.checks import Check
from dsrun.findings.finding import Finding

LIMIT_S = 8.0
"""Seconds until a check that does not end is given up: a dead network file system or a driver that hangs."""
TEXTS = toml_beside(__file__, "checks.toml")
"""Of each check, by code, in the order in which they are shown."""


def check_of(code: str, look: Callable[[MachineFacts, DoctorTarget], Iterable[Finding]]) -> Check:
    return Check(code=code, look=look, **TEXTS[code])
