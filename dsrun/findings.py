"""Finding: the one shape of advice that every judging command yields."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["error", "warning", "info"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One judgement: how bad, a stable code, what is the matter, what mends it and where it stands."""

    level: Level
    code: str
    message: str
    fix: str = ""
    where: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The finding as plain JSON values."""
        return asdict(self)
