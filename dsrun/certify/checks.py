"""The checks of `dsrun certify` by code: their texts, and which trained runs they compare."""

from collections.abc import Callable, Iterable
from typing import Any

from dsrun.datafiles import toml_beside
from dsrun.findings.checks import Check
from dsrun.findings.finding import Finding

CHECK_FACTS: dict[str, dict[str, Any]] = toml_beside(__file__, "checks.toml")
"""Of each check, by code, in the order in which they are shown."""


def check_of(code: str, look: Callable[[Any], Iterable[Finding]]) -> Check:
    """The check of this code. `look` takes a CertifySubject."""
    texts = {name: CHECK_FACTS[code][name] for name in ("title", "needs", "finds") if name in CHECK_FACTS[code]}
    return Check(code=code, look=look, **texts)
