"""Values of the records of a run, which another version, another program or a damaged disk may have written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

Record = Mapping[str, Any]


def whole(value: object) -> int | None:
    """A whole number; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def mapping(value: object) -> Record:
    """An object by its keys; {} for anything else."""
    return value if isinstance(value, Mapping) else {}


def finite(value: object) -> float | None:
    """A number that is finite; None for anything else, also for a whole one beyond what a float holds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def seconds_of(record: Record) -> float | None:
    """The time of a record in seconds since the epoch; None where it has none."""
    try:
        return datetime.fromisoformat(str(record.get("time"))).timestamp()
    except (ValueError, OverflowError):
        return None
