"""Finding: the one shape of advice that every judging command yields."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Level = Literal["error", "warning", "info"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""The worst first."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One result of a check: how bad, a stable code, what is wrong, what repairs it, and where it is."""

    level: Level
    code: str
    message: str
    fix: str = ""
    where: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The finding as plain JSON values."""
        return asdict(self)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Findings by level; those of one level stay in their order."""
    return sorted(findings, key=lambda each: LEVELS.index(each.level))


def errors_in(findings: Iterable[Finding]) -> list[Finding]:
    """Those of level error."""
    return [each for each in findings if each.level == "error"]


def has_errors(findings: Iterable[Finding]) -> bool:
    """Whether one is an error: what a command's exit code 3 means."""
    return any(each.level == "error" for each in findings)
