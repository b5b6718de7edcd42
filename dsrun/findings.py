"""Finding: the one shape of advice that every judging command yields."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
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


def nearest(name: str, choices: Iterable[str]) -> str:
    """What to write instead of `name`: the most similar of `choices`, or all of them."""
    there = sorted(set(choices))
    lower = {each.lower(): each for each in there}
    near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.5)
    if near:
        return f"did you mean {lower[near[0]]}?"
    return f"there are {', '.join(there)}" if there else "remove it"
