"""Where a run's time went, from its own events: training that counts, and everything else.

Goodput is the share of the wall time, from submission or start to the last event, that went into steps the run has
kept. The word and the idea are those of ML Productivity Goodput, Google Cloud, 2024."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from dsrun.datafiles import toml_beside
from dsrun.events import kind_of
from dsrun.runs.records import finite, seconds_of, whole
from dsrun.system.terminal.display import duration

WallTimeUse = Literal["training", "restart", "saving", "evaluating", "queued", "idle"]
TimeSpent = WallTimeUse | Literal["lost"]


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """Seconds of wall time by what they were used for; they add up to `total`.

    `productive`: training whose steps the run has kept; `lost`: training that had to be done again, or waited for a
    rank that stalled; `restart`: starting, loading and resuming, the first time as well; `saving` and `evaluating`:
    training waited for it; `queued`: its SLURM job was in the queue; `idle`: the run did not work, or unknown. `uses`:
    what it did, one thing after the other, each with its seconds; "training" are the productive ones."""

    productive: float
    restart: float
    lost: float
    saving: float
    evaluating: float
    idle: float
    queued: float = 0.0
    uses: tuple[tuple[TimeSpent, float], ...] = field(default=(), compare=False, repr=False)

    @property
    def total(self) -> float:
        """Seconds from submission or start to the last event."""
        return math.fsum(self.by_use().values())

    @property
    def share(self) -> float:
        """The goodput, from 0 to 1; 0 for a run without any time."""
        return self.productive / self.total if self.total else 0.0

    def by_use(self) -> dict[TimeSpent, float]:
        """The seconds by their use, in the order of LABELS; "training" are the productive ones."""
        return {use: getattr(self, "productive" if use == "training" else use) for use in LABELS}

    def as_dict(self) -> dict[str, float]:
        """All figures, for JSON."""
        figures = {name: seconds for name, seconds in vars(self).items() if name != "uses"}
        return figures | {"total": self.total, "goodput": self.share}


@dataclass
class _Span:
    """A time between two events in milliseconds, with the steps done at its beginning and, where known, at its end."""

    use: WallTimeUse
    length: int
    begin: int
    end: int | None = None
    lost: int = 0

    def lose(self, step: int) -> None:
        """Training went back to `step`: what was done beyond it does not count."""
        if self.use != "training":
            return
        if step <= self.begin:
            self.lost = self.length
        elif self.end is not None and self.end > step:
            self.lost = max(self.lost, self.length * (self.end - step) // (self.end - self.begin))


def goodput(events: Iterable[Mapping[str, Any]]) -> Goodput:
    """Where the time of a run went, from its events.jsonl, in the file's order.

    Events without a time or of an unknown kind are passed over. Between two events of one machine its uptime counts,
    whatever its clock was set to; else a clock that goes back stands still. A start says how long its job or supervisor
    had been starting by then, and been in the queue before. The rest of the time since the event before counts as idle,
    as where an attempt was killed together with its supervisor; while an attempt trains, it writes an event at least
    every minute or so."""
    spans = _spans([event for event in events if _time(event) is not None])
    sums = dict.fromkeys(("productive", "restart", "lost", "saving", "evaluating", "queued", "idle"), 0)
    uses: list[tuple[TimeSpent, float]] = []
    for span in spans:
        kept: tuple[TimeSpent, int] = (span.use, span.length - span.lost)
        lost: tuple[TimeSpent, int] = ("lost", span.lost)
        for use, length in (kept, lost):
            sums["productive" if use == "training" else use] += length
            uses += [(use, length / 1000)] if length else []
    return Goodput(**{name: length / 1000 for name, length in sums.items()}, uses=tuple(uses))


def _spans(events: list[Mapping[str, Any]]) -> list[_Span]:
    spans: list[_Span] = []
    before: Mapping[str, Any] = {}
    use: WallTimeUse = "idle"
    # What another program has saved is not known: its steps count until it makes them again.
    program = any(event.get("program") for event in events)
    step = saved = now = shift = 0
    waits = _waits(events)
    for event in events:
        kind = event.get("kind")
        wall = _time(event) or 0
        up = _uptime_between(before, event)
        at = max(now, wall + shift) if up is None else now + up
        shift = at - wall if up is not None else shift
        reached = whole(event.get("step"))
        if before or kind == "start":
            spans += _between(before, event, use, _Span(use, at - now if before else 0, step, reached), waits)
        now, before = at, event
        if not (kind == "evaluate" and use == "restart"):
            # An evaluation before any training leaves a run that has not trained yet.
            use = cast(WallTimeUse, kind_of(event).use or use)
        step = step if reached is None else reached
        if kind in ("checkpoint_end", "end"):
            saved = step
        elif kind == "training":
            for span in spans:
                span.lose(step)
    if kind_of(before).is_failure and not program:
        for span in spans:
            span.lose(saved)
    return spans


def _uptime_between(before: Mapping[str, Any], event: Mapping[str, Any]) -> int | None:
    """Milliseconds between two events by the uptime of the machine that wrote both; None where there is none."""
    one, other = finite(before.get("uptime")), finite(event.get("uptime"))
    same = event.get("boot") and all(before.get(name) == event.get(name) for name in ("host", "boot"))
    if not same or one is None or other is None:
        return None
    between = finite(1000 * (other - one))
    return None if between is None else max(0, round(between))


def _between(
    before: Mapping[str, Any], event: Mapping[str, Any], use: WallTimeUse, span: _Span, waits: Mapping[int, int]
) -> list[_Span]:
    """What the time between two events was used for; some record how long a part of it took."""
    kind = event.get("kind")
    if kind == "start":
        if before.get("kind") in ("restart", "remedy") or (finite(event.get("attempt")) or 0) > 0:
            return [replace(span, use="restart")]
        return _before_start(span.length if before else None, event)
    if use == "saving":
        # A save in the background lets training go on before it is complete.
        taken = min(span.length, waits.get(id(before), span.length))
        return [replace(span, length=taken), replace(span, use="training", length=span.length - taken)]
    if kind == "evaluate" and use in ("training", "restart"):
        taken = min(span.length, _milliseconds(event))
        return [replace(span, length=span.length - taken), replace(span, use="evaluating", length=taken)]
    if kind == "straggler" and use == "training":
        taken = min(span.length, _milliseconds(event, "lost_s"))
        return [replace(span, length=span.length - taken), replace(span, length=taken, lost=taken)]
    return [span]


def _before_start(gap: int | None, event: Mapping[str, Any]) -> list[_Span]:
    """What the time before a first attempt's start was used for; `gap` is that since the event before, if any."""
    starting, queued = (_milliseconds(event, name) for name in ("starting_s", "queued_s"))
    if gap is not None:
        starting = min(starting, gap)
        queued = min(queued, gap - starting)
    idle = 0 if gap is None else gap - starting - queued
    uses: tuple[tuple[WallTimeUse, int], ...] = (("idle", idle), ("queued", queued), ("restart", starting))
    return [_Span(use, length, 0) for use, length in uses]


def _waits(events: Sequence[Mapping[str, Any]]) -> Mapping[int, int]:
    """How long training waited for each save that was completed, in milliseconds by the id of its beginning."""
    found: dict[int, int] = {}
    ends: dict[int | None, int] = {}
    for event in reversed(events):
        step = whole(event.get("step"))
        if event.get("kind") == "checkpoint_end" and "seconds" in event:
            ends[step] = _milliseconds(event)
        elif event.get("kind") == "checkpoint_begin" and step in ends:
            found[id(event)] = ends.pop(step)
    return found


def _time(event: Mapping[str, Any]) -> int | None:
    """The event's time in milliseconds since the epoch."""
    seconds = seconds_of(event)
    return None if seconds is None else round(seconds * 1000)


def _milliseconds(event: Mapping[str, Any], name: str = "seconds") -> int:
    taken = finite(1000 * (finite(event.get(name)) or 0.0)) or 0.0
    return max(0, round(taken))


LABELS: Mapping[TimeSpent, str] = toml_beside(__file__)["labels"]
"""What each use of time is called, in the order in which they are told."""


def goodput_line(spent: Goodput) -> str:
    """One line: "goodput 93.1%: 41 min training, 1 min starting"; what is too little is left out."""
    parts = [
        f"{duration(seconds)} {LABELS[use]}"
        for use, seconds in spent.by_use().items()
        if seconds >= max(0.5, spent.total / 1000) or use == "training"
    ]
    return f"goodput {spent.share:.1%}: {', '.join(parts)}"


HOUR = 3600.0
# 419 unexpected interruptions of a run on 16,384 GPUs in 54 days: The Llama 3 Herd of Models (Meta, 2024), section
# 3.3.4. One GPU fails once in 50,700 hours, everything around it included.
FAILURES_PER_GPU_SECOND = 419 / (16_384 * 54 * 24 * HOUR)
# The published rate counts like this much watching of the run itself: enough to begin with, and soon outweighed.
PRIOR_WATCH = HOUR


def save_interval(save_s: float, mtbf_s: float) -> float:
    """Seconds of training between two saves that lose the least time, with saves of `save_s`, failures every `mtbf_s`.

    Daly's higher-order optimum (J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart
    dumps, FGCS 22, 2006, eq. 37), whose first term is Young's sqrt(2·δ·M) (J. W. Young, A first order approximation to
    the optimum checkpoint interval, CACM 17, 1974); for δ ≥ 2M it is M. Raises ValueError unless save_s ≥ 0 and
    mtbf_s > 0."""
    if not (save_s >= 0 and mtbf_s > 0):
        raise ValueError(f"a save takes {save_s} s and failures come every {mtbf_s} s")
    if save_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = save_s / (2 * mtbf_s)
    return math.sqrt(2 * save_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s


def mean_time_between_failures(events: Iterable[Mapping[str, Any]], ranks: int) -> float:
    """Seconds between two failures of a run on `ranks` GPUs (or CPU ranks), from its own events and the published rate.

    The rate's prior is a Gamma distribution whose mean is the published rate and that weighs like an hour of watching;
    the run's own failures in its own time of work move it, n failures in T seconds to (n + prior·1 h) / (T + 1 h). A
    run that has not failed is not taken for better than the published ones."""
    known = list(events)
    prior = max(1, ranks) * FAILURES_PER_GPU_SECOND
    spent = goodput(known)
    rate = (failures(known) + prior * PRIOR_WATCH) / (spent.total - spent.idle - spent.queued + PRIOR_WATCH)
    return 1 / max(rate, prior)


def failures(events: Iterable[Mapping[str, Any]]) -> int:
    """How many attempts ended by chance: a restart without a remedy, or a new start after an end without an event."""
    count = 0
    last = "end"
    for event in events:
        kind = str(event.get("kind"))
        if kind == "restart":
            count += last != "remedy"
        elif kind == "start":
            count += last not in ("end", "signal", "failure", "restart", "start")
        if kind in ("start", "training", "progress", "checkpoint_end", "end", "signal", "failure", "remedy", "restart"):
            last = kind
    return count
