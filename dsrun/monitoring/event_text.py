"""An event of a run as a line for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dsrun.monitoring.history import metric_keys
from dsrun.runs.values import Record, finite, mapping, whole
from dsrun.system.display import duration, figure, precise_duration, size_text

QUIET = frozenset({"progress", "checkpoint_begin"})
"""Events that tell nothing a person wants to read."""
BAD = frozenset({"failure", "checkpoint_failed", "nan"})
WORTH_A_LOOK = frozenset({"spike", "signal", "remedy", "restart", "failing", "waiting"})
_METRICS = 4
_LEAST_S = 0.05


def is_bad(event: Record) -> bool:
    """Whether it tells that something went wrong."""
    kind = event.get("kind")
    return kind in BAD or (kind == "end" and bool(event.get("exit_code")))


def describe(event: Record) -> str:
    """The event in a line without its time: "checkpoint of step 40 saved in 3 s"."""
    kind = str(event.get("kind"))
    text = _TEXTS[kind](event) if kind in _TEXTS else kind
    return f"{text} ({event['message']})" if event.get("message") and kind not in ("failure", "nan", "spike") else text


def _start(event: Record) -> str:
    ranks, attempt, requeue = (whole(event.get(name)) for name in ("world_size", "attempt", "requeue"))
    again = f", attempt {attempt}" if attempt else f", requeue {requeue}" if requeue else ""
    parts = [*_took("in the queue", event.get("queued_s")), *_took("starting", event.get("starting_s"))]
    where = f" on {ranks} rank{'' if ranks == 1 else 's'}" if ranks else ""
    return ", ".join([f"started{where}{again}", *parts])


def _evaluate(event: Record) -> str:
    metrics = mapping(event.get("metrics"))
    known = [(name, finite(metrics[name])) for name in metric_keys([metrics])]
    shown = [f"{name.removeprefix('eval_')} {figure(value)}" for name, value in known if value is not None]
    parts = [*shown[:_METRICS], *_took("in", event.get("seconds"), before=True)]
    return f"evaluated at step {_step(event)}" + (f": {', '.join(parts)}" if parts else "")


def _failure(event: Record) -> str:
    rank, code = whole(event.get("rank")), whole(event.get("exit_code"))
    who = f"rank {rank} failed" if rank is not None else "failed"
    told = [str(event[name]) for name in ("cause", "message") if event.get(name)]
    return ": ".join([who, *told]) + (f", exit code {code}" if code else "")


def _saved(event: Record) -> str:
    size = whole(event.get("bytes"))
    parts = [f"checkpoint of step {_step(event)} saved", *([size_text(size)] if size else [])]
    return ", ".join([*parts, *_took("training waited", event.get("seconds"), before=True)])


def _training(event: Record) -> str:
    step = whole(event.get("step"))
    begins = f"goes on after step {step:,}" if step else "begins"
    most = whole(event.get("max_steps"))
    return f"training {begins}" + (f", of {most:,} steps" if most else "")


def _end(event: Record) -> str:
    code = whole(event.get("exit_code"))
    seconds = finite(event.get("seconds"))
    at = f" at step {_step(event)}" if whole(event.get("step")) is not None else ""
    took = f" after {duration(seconds)}" if seconds else ""
    cause = f": {event['cause']}" if event.get("cause") else ""
    return f"ended{at}{took}{cause}" + (f", exit code {code}" if code else "")


def _took(what: str, value: object, *, before: bool = False) -> list[str]:
    """How long a part of it took, where that is worth a word; `before`: `what` comes before the time."""
    seconds = finite(value)
    if seconds is None or seconds < _LEAST_S:
        return []
    return [f"{what} {precise_duration(seconds)}" if before else f"{precise_duration(seconds)} {what}"]


def _step(event: Record) -> str:
    step = whole(event.get("step"))
    return "?" if step is None else f"{step:,}"


_TEXTS: Mapping[str, Callable[[Record], str]] = {
    "start": _start,
    "resume": lambda event: f"resumes from {event.get('path')}",
    "training": _training,
    "checkpoint_begin": lambda event: f"saving the checkpoint of step {_step(event)}",
    "checkpoint_end": _saved,
    "checkpoint_failed": lambda event: f"saving the checkpoint of step {_step(event)} failed",
    "evaluate": _evaluate,
    "nan": lambda event: f"step {_step(event)}: {event.get('message') or 'the loss is NaN'}",
    "spike": lambda event: f"step {_step(event)}: {event.get('message') or 'the loss jumped'}",
    "interval": lambda event: f"saves every {event.get('steps')} steps",
    "signal": lambda event: f"asked to stop by {event.get('signal')} at step {_step(event)}",
    "failure": _failure,
    "failing": lambda event: f"has failed, and is being ended: {event.get('cause')}",
    "waiting": lambda event: "waits",
    "remedy": lambda event: f"goes on with other settings after {event.get('cause')}",
    "restart": lambda event: f"restarts, attempt {event.get('attempt')}",
    "end": _end,
    "progress": lambda event: f"at step {_step(event)}",
}
