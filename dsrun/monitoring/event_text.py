"""An event of a run as a line for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dsrun.runs.values import Record, finite, whole
from dsrun.system.display import duration, figure, precise_duration

QUIET = frozenset({"progress", "checkpoint_begin"})
"""Events that tell nothing a person wants to read."""
BAD = frozenset({"failure", "checkpoint_failed", "nan"})
WORTH_A_LOOK = frozenset({"spike", "signal", "remedy", "restart"})
_METRICS = 4


def describe(event: Record) -> str:
    """The event in a line without its time: "checkpoint of step 40 saved in 3 s"."""
    kind = str(event.get("kind"))
    text = _TEXTS[kind](event) if kind in _TEXTS else kind
    return f"{text} ({event['message']})" if event.get("message") and kind not in ("failure", "nan", "spike") else text


def _start(event: Record) -> str:
    ranks, attempt, requeue = (whole(event.get(name)) for name in ("world_size", "attempt", "requeue"))
    again = f", attempt {attempt}" if attempt else f", requeue {requeue}" if requeue else ""
    return f"started{f' on {ranks} ranks' if ranks else ''}{again}"


def _evaluate(event: Record) -> str:
    metrics = event.get("metrics")
    found = metrics if isinstance(metrics, Mapping) else {}
    timing = ("_seconds", "_per_second", "_runtime", "_samples", "epoch")
    known = [(str(name), finite(value)) for name, value in found.items() if not str(name).endswith(timing)]
    shown = [f"{name.removeprefix('eval_')} {figure(value)}" for name, value in known if value is not None]
    return f"evaluated at step {_step(event)}: {', '.join(shown[:_METRICS])}"


def _failure(event: Record) -> str:
    rank = whole(event.get("rank"))
    who = f"rank {rank} failed" if rank is not None else "failed"
    return f"{who}: {event.get('cause')}: {event.get('message')}"


def _saved(event: Record) -> str:
    seconds = finite(event.get("seconds"))
    return f"checkpoint of step {_step(event)} saved" + (
        f", training waited {precise_duration(seconds)}" if seconds else ""
    )


def _training(event: Record) -> str:
    step = whole(event.get("step"))
    begins = f"goes on after step {step:,}" if step else "begins"
    most = whole(event.get("max_steps"))
    return f"training {begins}" + (f", of {most:,} steps" if most else "")


def _end(event: Record) -> str:
    code = whole(event.get("exit_code"))
    seconds = finite(event.get("seconds"))
    took = f" after {duration(seconds)}" if seconds else ""
    return f"ended at step {_step(event)}{took}" + (f", exit code {code}" if code else "")


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
    "remedy": lambda event: f"goes on with other settings after {event.get('cause')}",
    "restart": lambda event: f"restarts, attempt {event.get('attempt')}",
    "end": _end,
    "progress": lambda event: f"at step {_step(event)}",
}
