"""How this room words its findings."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from dsrun.findings import Finding


def error(code: str, message: str, *, fix: str, where: str) -> Finding:
    """A finding that no job survives."""
    return Finding(level="error", code=f"slurm_{code}", message=message, fix=fix, where=where)


def nearest(name: str, choices: Iterable[str]) -> str:
    """What to write instead of `name`: the most similar of `choices`, or all of them."""
    there = sorted(set(choices))
    lower = {each.lower(): each for each in there}
    near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.5)
    if near:
        return f"did you mean {lower[near[0]]}?"
    return f"there are {', '.join(there)}" if there else "leave it away"
