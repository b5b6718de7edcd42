"""The values of a run over its steps: read, made fewer, and smoothed. A value that is not finite is a gap."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from dsrun.monitoring.history import Record, whole

Point = tuple[int, float]
# The running mean is over about this share of the curve.
_SPAN = 0.03


def points_of(records: Iterable[Record], key: str, divisor: float = 1.0) -> tuple[Point, ...]:
    """(step, value) of the records with a number under `key`, also one that is not finite."""
    found = []
    for record in records:
        step, value = whole(record.get("step")), record.get(key)
        if step is not None and isinstance(value, (int, float)) and not isinstance(value, bool):
            found.append((step, value / divisor))
    return tuple(found)


def thinned(points: Sequence[Point], limit: int) -> tuple[Point, ...]:
    """At most about `limit` of the points: of each stretch of steps the least and the greatest value and the first one
    that is not finite, so that peaks and gaps stay. First and last point stay, too."""
    if len(points) <= limit:
        return tuple(points)
    stretches = max(1, limit // 2)
    kept: list[Point] = [points[0]]
    for number in range(stretches):
        stretch = range(number * len(points) // stretches, (number + 1) * len(points) // stretches)
        finite = [index for index in stretch if math.isfinite(points[index][1])]
        chosen = {next((index for index in stretch if not math.isfinite(points[index][1])), -1)}
        if finite:
            chosen |= {min(finite, key=lambda each: points[each][1]), max(finite, key=lambda each: points[each][1])}
        kept += [points[index] for index in sorted(chosen) if index > 0]
    return tuple(kept if kept[-1] == points[-1] else [*kept, points[-1]])


def smoothed(points: Sequence[Point]) -> tuple[Point, ...]:
    """The running mean of a curve, over as many points before each one as after it, so that it does not lag behind;
    none across a gap."""
    reach = max(2, round(_SPAN * len(points) / 2))
    sums, gaps = [0.0], [0]
    for _, value in points:
        sums.append(sums[-1] + (value if math.isfinite(value) else 0.0))
        gaps.append(gaps[-1] + (not math.isfinite(value)))
    found = []
    for index, (step, value) in enumerate(points):
        # Narrower at the ends, and beside a gap.
        side = min(reach, index, len(points) - 1 - index)
        while side and gaps[index + side + 1] - gaps[index - side]:
            side //= 2
        mean = (sums[index + side + 1] - sums[index - side]) / (2 * side + 1) if side else value
        found.append((step, mean))
    return tuple(found)


def finite_values(points: Iterable[Point]) -> list[float]:
    """The values without the gaps."""
    return [value for _, value in points if math.isfinite(value)]
