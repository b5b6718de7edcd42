"""The values of a run over its steps: read, made fewer, and smoothed. A value that is not finite is a gap."""

import math
from collections.abc import Iterable, Sequence

from dsrun.runs.records import LedgerRecord, whole

SeriesPoint = tuple[int, float]
# The running mean is over about this share of the curve.
_SPAN = 0.015
_LARGEST = 1e300
_LAST_STEP = 10**15


def points_of(records: Iterable[LedgerRecord], key: str, divisor: float = 1.0) -> tuple[SeriesPoint, ...]:
    """(step, value) of the records with a number under `key`, also one that is not finite. A value that no axis can
    hold counts as infinite, and one too small for it as 0."""
    found = []
    for record in records:
        step, value = whole(record.get("step")), record.get(key)
        if (
            step is None
            or not 0 <= step <= _LAST_STEP
            or isinstance(value, bool)
            or not isinstance(value, (int, float))
        ):
            continue
        if isinstance(value, int) and abs(value) > _LARGEST:
            value = math.inf if value > 0 else -math.inf
        value = value / divisor
        value = math.copysign(math.inf, value) if abs(value) > _LARGEST else value
        found.append((step, 0.0 if abs(value) < 1 / _LARGEST else float(value)))
    return tuple(found)


def thinned(points: Sequence[SeriesPoint], limit: int) -> tuple[SeriesPoint, ...]:
    """At most about `limit` of the points: of each stretch of steps the least and the greatest value and the first one
    that is not finite, so that peaks and gaps stay. First and last point stay, too."""
    if len(points) <= limit:
        return tuple(points)
    stretches = max(1, limit // 2)
    kept: list[SeriesPoint] = [points[0]]
    for number in range(stretches):
        stretch = range(number * len(points) // stretches, (number + 1) * len(points) // stretches)
        finite = [index for index in stretch if math.isfinite(points[index][1])]
        chosen = {next((index for index in stretch if not math.isfinite(points[index][1])), -1)}
        if finite:
            chosen |= {min(finite, key=lambda each: points[each][1]), max(finite, key=lambda each: points[each][1])}
        kept += [points[index] for index in sorted(chosen) if index > 0]
    return tuple(kept if kept[-1] == points[-1] else [*kept, points[-1]])


def smoothed(points: Sequence[SeriesPoint]) -> tuple[SeriesPoint, ...]:
    """The running mean of a curve, over as many points before each one as after it, so that it does not lag behind;
    none across a gap."""
    reach = max(2, round(_SPAN * len(points) / 2))
    sums, gaps = [0.0], [0]
    for _, value in points:
        sums.append(sums[-1] + (value if math.isfinite(value) else 0.0))
        gaps.append(gaps[-1] + (not math.isfinite(value)))
    found = []
    for index, (step, value) in enumerate(points):
        # Narrower at the ends, where a curve falls or rises most, and beside a gap.
        side = max(min(reach, index, len(points) - 1 - index), reach // 4)
        begin, end = max(0, index - side), min(len(points), index + side + 1)
        while gaps[end] - gaps[begin] and end - begin > 1:
            begin, end = index - (index - begin) // 2, index + 1 + (end - index - 1) // 2
        found.append((step, (sums[end] - sums[begin]) / (end - begin) if math.isfinite(value) else value))
    return tuple(found)


def finite_values(points: Iterable[SeriesPoint]) -> list[float]:
    """The values without the gaps."""
    return [value for _, value in points if math.isfinite(value)]
