"""The events of a run as a table, and what its time went into as a strip."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsrun.report.panels import metric_keys, metric_name
from dsrun.runs.goodput import LABELS, uses
from dsrun.runs.values import Record, seconds_of, whole
from dsrun.system.display import duration, figure, precise_duration, size_text

MOST_ROWS = 150
"""Of more events, the first third and the last two are shown."""
_LEAST_SHARE = 1 / 800
_METRICS = 4
_BAD = ("failure", "nan", "spike", "checkpoint_failed", "signal")
# Kinds that say only that the run went on, or that another event tells better.
_LEFT_OUT = ("progress", "checkpoint_begin")
_TITLES = {
    "start": "started", "resume": "resumed", "training": "training", "checkpoint_end": "checkpoint",
    "checkpoint_failed": "checkpoint failed", "evaluate": "evaluation", "nan": "NaN or infinity", "spike": "loss spike",
    "interval": "save interval", "signal": "signal", "failure": "failure", "remedy": "remedy", "restart": "restart",
    "end": "end",
}  # fmt: skip
_TICKS = (
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    10800,
    21600,
    43200,
    86400,
    172800,
    432000,
    864000,
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One event: `since` the first one, in words; `count` such events followed each other and are not shown."""

    time: str
    since: str
    title: str
    step: str
    detail: str
    bad: bool = False
    skipped: int = 0


@dataclass(frozen=True)
class Segment:
    """A stretch of a run's time in which it did one thing: shares of the whole, from 0 to 1, and words."""

    use: str
    begin: float
    length: float
    text: str


def rows(events: Sequence[Record]) -> list[Row]:
    """The events that tell something, in their order."""
    told = [event for event in events if event.get("kind") not in _LEFT_OUT and "kind" in event]
    began = next((at for event in events if (at := seconds_of(event)) is not None), None)
    found = [_row(event, began) for event in told]
    if len(found) <= MOST_ROWS:
        return found
    head, tail = MOST_ROWS // 3, MOST_ROWS - MOST_ROWS // 3
    left = found[head:-tail]
    # What went wrong is shown wherever it was.
    bad = [row for row in left if row.bad][:MOST_ROWS]
    gap = Row(time="", since="", title="", step="", detail="", skipped=len(left) - len(bad))
    return [*found[:head], gap, *bad, *found[-tail:]]


def strip(events: Iterable[Record]) -> list[Segment]:
    """What the time of a run was used for, from its first event on; what is too short to be seen joins what came
    before."""
    spans = uses(events)
    total = sum(seconds for _, seconds in spans)
    merged: list[list[Any]] = []
    for use, seconds in spans:
        if merged and (merged[-1][0] == use or seconds < total * _LEAST_SHARE):
            merged[-1][1] += seconds
        else:
            merged.append([use, seconds])
    found, begin = [], 0.0
    for use, seconds in merged:
        found.append(Segment(use, begin / total, seconds / total, f"{LABELS[use]}: {duration(seconds)}"))
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


def _row(event: Record, began: float | None) -> Row:
    kind, at, step = str(event.get("kind")), seconds_of(event), whole(event.get("step"))
    return Row(
        time=str(event.get("time", ""))[:19].replace("T", " "),
        since="" if at is None or began is None else f"+{clock(max(0.0, at - began))}",
        title=_TITLES.get(kind, kind),
        step="" if step is None else f"{step:,}",
        detail=_detail(kind, event),
        bad=kind in _BAD or (kind == "end" and bool(event.get("exit_code"))),
    )


def clock(seconds: float) -> str:
    """Seconds as hours, minutes and seconds: 0:05, 12:34, 3:02:01; from a day on with the days: 2 d 3:02:01."""
    whole_seconds = int(seconds)
    days, rest = divmod(whole_seconds, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    text = f"{hours}:{minutes:02}:{left:02}" if hours or days else f"{minutes}:{left:02}"
    return f"{days} d {text}" if days else text


def _detail(kind: str, event: Record) -> str:
    parts: list[str] = []
    if kind == "start":
        parts = [f"{event['world_size']} ranks"] if whole(event.get("world_size")) else []
        parts += [f"attempt {number + 1}"] if (number := whole(event.get("attempt"))) else []
        parts += [f"requeue {number}"] if (number := whole(event.get("requeue"))) else []
        parts += _seconds("starting", event.get("starting_s")) + _seconds("in the queue", event.get("queued_s"))
    elif kind == "training":
        parts = [f"of {number:,} steps"] if (number := whole(event.get("max_steps"))) else []
    elif kind == "checkpoint_end":
        parts = [size_text(number)] if (number := whole(event.get("bytes"))) else []
        parts += _seconds("training waited", event.get("seconds"))
    elif kind == "evaluate":
        parts = _metric_parts(event.get("metrics")) + _seconds("in", event.get("seconds"))
    elif kind in ("end", "failure"):
        parts = [f"exit code {event['exit_code']}"] if whole(event.get("exit_code")) is not None else []
        parts = [*([str(event["cause"])] if event.get("cause") else []), *parts]
        parts += [f"rank {event['rank']}"] if whole(event.get("rank")) is not None else []
    elif kind == "signal":
        parts = [str(event.get("signal", ""))]
    elif kind == "resume":
        parts = [f"from {event['path']}"] if event.get("path") else []
    message = str(event.get("message") or "")
    return " · ".join(part for part in (*parts, message) if part)


def _seconds(what: str, value: object) -> list[str]:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0.05:
        return []
    return [f"{what} {precise_duration(value)}"]


def _metric_parts(metrics: object) -> list[str]:
    found: Mapping[str, Any] = metrics if isinstance(metrics, Mapping) else {}
    keys = [key for key in metric_keys([found]) if isinstance(found[key], (int, float))]
    return [f"{metric_name(key)} {figure(float(found[key]))}" for key in keys[:_METRICS]]
