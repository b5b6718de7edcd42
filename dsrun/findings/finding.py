"""Finding: the one shape of advice that every judging command yields."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["error", "warning", "info"]


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
