"""When checkpoints are saved: --save-every auto, and the time that a save takes."""

import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from dsrun.runs.goodput import mean_time_between_failures, save_interval
from dsrun.train.base.console import Console
from dsrun.train.base.plan import TrainingPlan
from dsrun.train.base.rank_context import RankContext
from dsrun.train.base.run_records import RunRecords, step_of
from dsrun.train.loop.nan import NanGuard

# The first save comes early, as nothing is known before it.
FIRST_SAVE_SECONDS = 60.0
# By what factor the interval must change to be reported again.
REPORTED_CHANGE = 2.0


@dataclass(eq=False)
class AdaptiveSaveInterval(TrainerCallback):
    """Saves when the interval is over. The clock of the one that `leads`, rank 0, decides: its request travels in the
    sum that all ranks form before the next step. `interval` gives the seconds between saves from the seconds that a
    save takes; `on_change` (step, seconds, steps, message) is called for each interval that is chosen."""

    trainer: Any
    interval: Callable[[float], float]
    on_change: Callable[[int, float, int, str], None]
    _: KW_ONLY
    leads: bool = True
    clock: Callable[[], float] = time.monotonic
    seconds: float = field(default=FIRST_SAVE_SECONDS, init=False)
    _reported: float = field(default=0.0, init=False)
    _last_save: float = field(default=0.0, init=False)
    _last_step: float = field(default=0.0, init=False)
    _step_seconds: float = field(default=0.0, init=False)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._last_save = self._last_step = self.clock()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        now = self.clock()
        self._step_seconds, self._last_step = now - self._last_step, now
        if self.trainer.ranks_want_to_save and state.global_step < state.max_steps:
            control.should_save = True
        # One step ahead, as the others learn of it with the next step.
        if self.leads:
            self.trainer.wants_to_save = now + self._step_seconds - self._last_save >= self.seconds

    def saved(self, step: int, seconds: float) -> None:
        self._last_save = self._last_step = self.clock()
        self.trainer.wants_to_save = False
        self.seconds = self.interval(seconds)
        steps = max(1, round(self.seconds / self._step_seconds)) if self._step_seconds else 0
        if not self._reported or not 1 / REPORTED_CHANGE <= self.seconds / self._reported <= REPORTED_CHANGE:
            self._reported = self.seconds
            message = f"a save takes {seconds:.1f} s, so one is made every {self.seconds:.0f} s"
            self.on_change(step, self.seconds, steps, message + (f" (about {steps:,} steps)" if steps else ""))


def adaptive_interval(trainer: Any, plan: TrainingPlan, records: RunRecords, console: Console) -> AdaptiveSaveInterval:
    # Young's optimum (1974), which Daly (2006) refined, from the failures of this very run folder: see runs/goodput.py.
    mtbf = mean_time_between_failures(records.history(), plan.world.size)

    def on_change(step: int, seconds: float, steps: int, message: str) -> None:
        records.event("interval", step=step, seconds=seconds, steps=steps, message=message)
        console.print(f"note: {message}", style="yellow")

    return AdaptiveSaveInterval(
        trainer, lambda seconds: save_interval(seconds, mtbf), on_change, leads=plan.world.is_main
    )


@dataclass(eq=False)
class SaveTimer:
    """What goes with a save, on all ranks: no NaN is saved, the heartbeat and the events record it. `saved` (step,
    seconds) is called with the time that training waited."""

    context: RankContext
    records: RunRecords
    guard: NanGuard
    model: Any
    saved: Callable[[int, float], None]

    def __call__(self, phase: str, folder: Path, seconds: float, **details: Any) -> None:
        """`begin` before anything is written, `visible` when the checkpoint is complete, `end` when training goes
        on; `failed` instead of both where it is tried once more."""
        step = step_of(folder)
        if phase == "begin":
            self.context.heart.enter("saving")
            self.guard.check_weights(self.model, step)
        self.records.checkpoint(phase, folder, seconds, details)
        if phase == "end":
            self.context.progress.saved = step
            self.context.heart.enter("training")
            self.saved(step, seconds)
        elif phase == "failed":
            self.context.heart.enter("training")
