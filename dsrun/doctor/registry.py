"""The checks of `dsrun doctor`: checks.toml has their texts, and where in this package the function is that looks."""

from pkgutil import resolve_name

from dsrun.datafiles import toml_beside
from dsrun.doctor.machine_facts import DEEP_PROGRAM_S
from dsrun.findings.checks import Check

LIMIT_S = 8.0
"""Seconds until a check that does not end is given up: a dead network file system or a driver that hangs."""
DEEP_LIMIT_S = DEEP_PROGRAM_S + 10


_ROWS = toml_beside(__file__, "checks.toml")


def _checks(*, deep: bool) -> tuple[Check, ...]:
    texts = ("title", "needs", "finds")
    return tuple(
        Check(code, look=resolve_name(f"dsrun.doctor.{row['look']}"), **{key: row[key] for key in texts if key in row})
        for code, row in _ROWS.items()
        if row.get("deep", False) is deep
    )


CHECKS = _checks(deep=False)
"""In the order of how often they hurt."""
OF_IDLE_MACHINES = tuple(code for code, row in _ROWS.items() if row.get("idle"))
"""Those that a job fails by its own doing while it runs: they ask whether what it takes is still free."""
DEEP_CHECKS = _checks(deep=True)
"""Those of --deep, which use the GPUs for minutes: they run last, one after the other, DEEP_LIMIT_S seconds each."""
