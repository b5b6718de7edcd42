"""A run at this moment: its state, how far it is, how fast, what it costs, and when it will be over."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, cast

from dsrun.errors import EXIT_RESUME
from dsrun.events import kind_of
from dsrun.runs.folder import STALE_S, RunFolder, last_write, who_runs
from dsrun.runs.goodput import Goodput, failures, goodput
from dsrun.runs.lock import LOCK_TRIES, last_holder
from dsrun.runs.reader import RunHistory
from dsrun.runs.records import LedgerRecord, finite, plain, seconds_of, step_of, whole

RunState = Literal[
    "starting", "training", "evaluating", "saving", "restarting", "finished", "failed", "stopped", "killed", "silent"
]
"""What a run does, or how it ended. "silent" is a trainer that dsrun knows by a log only, without news for minutes."""
OVER: tuple[RunState, ...] = ("finished", "failed", "stopped", "killed")
_PHASES: dict[str, RunState] = {"training": "training", "evaluating": "evaluating", "generating": "evaluating"}
_FIGURES = ("epoch", "loss", "lr", "grad_norm", "tokens_per_s", "padding", "mfu")
RECENT = 20
"""So many logged steps tell how fast a run is now."""


@dataclass(frozen=True, kw_only=True)
class BestMetric:
    """The best value of the metric that a run is judged by."""

    metric: str
    value: float
    step: int
    greater_is_better: bool = False

    @property
    def rank(self) -> float:
        """A number that is lower for a better value."""
        return -self.value if self.greater_is_better else self.value


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """A run at one moment; durations in seconds, None for what is not known (yet).

    `since_s` counts from the first event; `silent_s` from the last write to its files; `checkpoint_age_s` from the last
    complete checkpoint, at `checkpoint_step`. `step_s` is the time of a step lately, `eta_s` what is left at that
    speed. `time` is what its time was used for. `cause` and `message` are those of the failure or signal that ended it.
    """

    path: Path
    state: RunState
    model: str | None = None
    host: str | None = None
    step: int | None = None
    max_steps: int | None = None
    epoch: float | None = None
    loss: float | None = None
    loss_is_finite: bool = True
    lr: float | None = None
    grad_norm: float | None = None
    tokens: int | None = None
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    padding: float | None = None
    mfu: float | None = None
    step_s: float | None = None
    eta_s: float | None = None
    since_s: float | None = None
    silent_s: float | None = None
    checkpoint_step: int | None = None
    checkpoint_age_s: float | None = None
    best: BestMetric | None = None
    time: Goodput | None = None
    restarts: int = 0
    world_size: int | None = None
    cause: str | None = None
    message: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing runs any more."""
        return self.state in OVER

    @property
    def goodput(self) -> float | None:
        """The share of its time that went into steps which it has kept, from 0 to 1."""
        return None if self.time is None else self.time.share


def status_json(status: RunStatus) -> dict[str, Any]:
    """A status as JSON, its path as text."""
    figures = asdict(replace(status, time=None)) | {"goodput": status.goodput, "is_over": status.is_over}
    del figures["time"]
    return plain(figures)


def status_of(history: RunHistory, now: float | None = None, *, lock_tries: int = LOCK_TRIES) -> RunStatus:
    """The status of a run at `now`, in seconds since the epoch. `lock_tries` as the `tries` of `is_in_use`."""
    now = time.time() if now is None else now
    events, last = history.events, history.steps[-1] if history.steps else {}
    state = _state(history, now, lock_tries)
    over = state in OVER
    step = max((number for each in (last, *events[-1:]) if (number := step_of(each)) is not None), default=None)
    told = (seconds for each in reversed(events) if (seconds := finite(each.get("step_s"))))
    step_s = recent_step_s(history.steps)
    step_s = next(told, None) if step_s is None else step_s
    left = history.max_steps - step if history.max_steps is not None and step is not None else None
    saved = next((each for each in reversed(events) if each.get("kind") == "checkpoint_end"), {})
    began = next((at for each in events if (at := seconds_of(each)) is not None), None)
    ended = _last_sign(history, "all" if state == "killed" else "events")
    written = last_write(history.path)
    endings = (each for each in reversed(events) if kind_of(each).over in ("failed", "stopped"))
    ending = next(endings, {}) if over and state != "finished" else {}
    return RunStatus(
        path=history.path,
        state=state,
        model=_text(history.run.get("model")) or _text(history.program),
        host=_text(history.run.get("host")),
        step=step,
        max_steps=history.max_steps,
        loss_is_finite=not isinstance(last.get("loss"), float) or finite(last["loss"]) is not None,
        tokens=whole(last.get("tokens")),
        **{name: finite(last.get(name)) for name in _FIGURES},
        step_s=step_s,
        eta_s=left * step_s if left is not None and step_s is not None and not over else None,
        since_s=None if began is None else max(0.0, (ended if over and ended else now) - began),
        silent_s=None if written is None else max(0.0, now - written),
        checkpoint_step=whole(saved.get("step")),
        checkpoint_age_s=None if (at := seconds_of(saved)) is None else max(0.0, now - at),
        best=best_of(history),
        time=goodput(_ledger(history, state)) if history.tells_of_training else None,
        restarts=failures(events),
        world_size=next((size for each in reversed(events) if (size := whole(each.get("world_size")))), None),
        cause=_text(ending.get("cause")) or ("run_killed" if state == "killed" else None),
        message=_text(ending.get("message")) or _text(ending.get("signal")),
    )


def _last_sign(history: RunHistory, of: Literal["all", "events"]) -> float | None:
    """The time of the last event; of "all", also of what a run that was killed had told since."""
    beside = (*history.steps[-1:], *({"time": node.time} for node in history.nodes)) if of == "all" else ()
    event = next((at for each in reversed(history.events) if (at := seconds_of(each)) is not None), None)
    return max((at for at in (event, *map(seconds_of, beside)) if at is not None), default=None)


def _ledger(history: RunHistory, state: RunState) -> tuple[LedgerRecord, ...]:
    """The events of a run for its goodput; of one that trains, or a program that was killed, with its last logged step
    as if it were one, too: events that tell only that training goes on are a minute apart."""
    events, last = history.events, history.steps[-1] if history.steps else {}
    since, logged = seconds_of(events[-1]) if events else None, seconds_of(last)
    told = state in OVER and not (state == "killed" and history.program)
    if told or not events or kind_of(events[-1]).state != "training":
        return events
    if since is None or logged is None or logged <= since:
        return events
    return (*events, {"kind": "progress", "time": last["time"], "step": last["step"]})


def recent_step_s(steps: Sequence[LedgerRecord]) -> float | None:
    """The median seconds of an optimizer step over the last RECENT logged ones, by their times; None before two."""
    times = [(step_of(each), seconds_of(each)) for each in steps[-RECENT - 1 :]]
    known = [(step, at) for step, at in times if step is not None and at is not None]
    spans = [(at - before) / (step - earlier) for (earlier, before), (step, at) in pairwise(known) if step > earlier]
    return statistics.median(spans) if spans else None


def best_of(history: RunHistory) -> BestMetric | None:
    """The best evaluation by `metric_for_best_model`, else by eval_loss; None without one."""
    settings = history.settings
    metric = str(settings.get("metric_for_best_model") or "eval_loss")
    metric = metric if metric.startswith("eval_") else f"eval_{metric}"
    greater = settings.get("greater_is_better")
    # The Trainer's own rule: a loss is better when it is lower.
    greater = not metric.endswith("loss") if greater is None else bool(greater)
    found = history.series(metric)
    if not found:
        return None
    step, value = (max if greater else min)(found, key=lambda each: each[1])
    return BestMetric(metric=metric, value=value, step=step, greater_is_better=greater)


def _state(history: RunHistory, now: float, lock_tries: int) -> RunState:
    # What was before a wait goes on: training, or the restart whose ranks wait for GPU memory.
    last = next((each for each in reversed(history.events) if each.get("kind") != "waiting"), {})
    kind = kind_of(last)
    if kind.name == "end":
        code = whole(last.get("exit_code"))
        return "stopped" if code == EXIT_RESUME else "failed" if code else "finished"
    if who_runs(history.path, tries=lock_tries):
        return _doing(history, last, now)
    if RunFolder(history.path).finished.exists():
        return "finished"
    if not history.events and not history.run and not last_holder(history.path).pid:
        return "silent"  # logs of a run that nobody has ever kept a record of
    return cast(RunState, kind.over)


def _doing(history: RunHistory, last: LedgerRecord, now: float) -> RunState:
    """What a run does that goes on."""
    state = kind_of(last).state
    if state == "saving":
        return "saving"
    if last.get("kind") == "start" and history.program:
        return "training"  # where its output tells nothing, for as long as it runs
    phases = (rank.phase for node in history.nodes for rank in node.ranks) if _has_fresh_nodes(history, now) else ()
    return _PHASES.get(next(iter(phases), "")) or cast(RunState, state)


def _has_fresh_nodes(history: RunHistory, now: float) -> bool:
    """Whether a node's status is as new as that of one that lives, and newer than the last event."""
    newest = max((at for node in history.nodes if (at := seconds_of({"time": node.time})) is not None), default=None)
    event = seconds_of(history.events[-1]) if history.events else None
    return newest is not None and now - newest < STALE_S and (event is None or newest >= event)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
