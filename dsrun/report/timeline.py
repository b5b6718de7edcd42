"""The events of a run as a table, and what its time went into as a strip."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dsrun.events import level_of
from dsrun.monitoring.event_text import describe
from dsrun.runs.goodput import LABELS, Goodput
from dsrun.runs.records import LedgerRecord, seconds_of, whole
from dsrun.system.terminal.display import duration

MOST_ROWS = 150
"""Of more events, the first third and the last two are shown."""
_LEAST_SHARE = 1 / 800
_TICKS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000, 864000
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TimelineRow:
    """One event, `since` the first one; or so many `skipped` ones, which are not shown."""

    time: str
    since: str
    step: str
    text: str
    bad: bool = False
    skipped: int = 0


@dataclass(frozen=True)
class TimeSegment:
    """A stretch of a run's time in which it did one thing: shares of the whole, from 0 to 1, and words."""

    use: str
    begin: float
    length: float
    text: str


def rows(events: Sequence[LedgerRecord]) -> list[TimelineRow]:
    """The events that tell something, in their order."""
    told = [event for event in events if "kind" in event and level_of(event) != "quiet"]
    began = next((at for event in events if (at := seconds_of(event)) is not None), None)
    found = [_row(event, began) for event in told]
    if len(found) <= MOST_ROWS:
        return found
    head, tail = MOST_ROWS // 3, MOST_ROWS - MOST_ROWS // 3
    left = found[head:-tail]
    # What went wrong is shown wherever it was.
    bad = [row for row in left if row.bad][:MOST_ROWS]
    gap = TimelineRow(time="", since="", step="", text="", skipped=len(left) - len(bad))
    return [*found[:head], gap, *bad, *found[-tail:]]


def strip(time: Goodput) -> list[TimeSegment]:
    """What the time of a run was used for, from its first event on; what is too short to be seen joins what came
    before."""
    total = sum(seconds for _, seconds in time.uses)
    merged: list[list[Any]] = []
    for use, seconds in time.uses:
        if merged and (merged[-1][0] == use or seconds < total * _LEAST_SHARE):
            merged[-1][1] += seconds
        else:
            merged.append([use, seconds])
    found, begin = [], 0.0
    for use, seconds in merged:
        found.append(TimeSegment(use, begin / total, seconds / total, f"{LABELS[use]}: {duration(seconds)}"))
        begin += seconds
    return found


def time_ticks(total: float) -> list[tuple[float, str]]:
    """Ticks of an axis of so many seconds, as (share, text)."""
    if total <= 0:
        return []
    step = next((tick for tick in _TICKS if total / tick <= 6), total / 5)
    return [(number * step / total, duration_text(number * step)) for number in range(int(total / step) + 1)]


def duration_text(seconds: float) -> str:
    """A round number of seconds: 0, 30 s, 5 min, 2 h, 3 days."""
    if not seconds:
        return "0"
    for unit, name in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.4g} {name}"
    return f"{seconds:.4g} s"


def _row(event: LedgerRecord, began: float | None) -> TimelineRow:
    at, step = seconds_of(event), whole(event.get("step"))
    return TimelineRow(
        time=str(event.get("time", ""))[:19].replace("T", " "),
        since="" if at is None or began is None else f"+{clock(max(0.0, at - began))}",
        step="" if step is None else f"{step:,}",
        text=describe(event),
        bad=level_of(event) in ("warning", "error"),
    )


def clock(seconds: float) -> str:
    """Seconds as hours, minutes and seconds: 0:05, 12:34, 3:02:01; from a day on with the days: 2 d 3:02:01."""
    whole_seconds = int(seconds)
    days, rest = divmod(whole_seconds, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    text = f"{hours}:{minutes:02}:{left:02}" if hours or days else f"{minutes}:{left:02}"
    return f"{days} d {text}" if days else text
