"""Rows that cannot be used, and how many of them --max-bad-rows lets be left out."""

import math
from collections.abc import Mapping
from typing import Any, Final

from dsrun.datafiles import toml_beside
from dsrun.errors import UsageError

REASONS: Final[dict[str, str]] = toml_beside(__file__)
"""Why rows are left out, by the names that run.json has for it."""
UNUSABLE: Final = ("unreadable", "columns", "invalid", "template", "tool_calls")
"""The reasons that are faults, of which --max-bad-rows allows a share; rows of the others are simply left out."""

UNREADABLE: Final = "\0unreadable"
"""The only key of a row that could not be read: why."""


def refuse_bad(left: Mapping[str, list[Any]], rows: int, share: float, *, least: int = 1) -> None:
    """Raise UsageError where more than this share of the rows cannot be used; fewer rows than `least` count as so many.
    `left` has by reason the number of rows first, and last the first of them in words."""
    found = {reason: left[reason] for reason in UNUSABLE if reason in left}
    bad = sum(count for count, *_ in found.values())
    # 0.29 * 100 is less than 29.
    if bad <= share * max(rows, least) + 1e-6:
        return
    why = "; ".join(f"{count:,} {REASONS[reason]} (the first: {first})" for reason, (count, *_, first) in found.items())
    enough = math.ceil(1000 * bad / max(rows, least)) / 1000
    leave = f"leave such rows out: --max-bad-rows {enough:g}"
    mend = "mend them" if bad >= rows else f"mend them, or {leave}"
    raise UsageError(f"{bad:,} of {rows:,} rows cannot be used: {why}", fix=mend)
