"""Stopping on request: the ranks' vote, the save before the exit, and the evaluation to make up for; and when else
checkpoints are saved: --save-every auto, by the time that a save takes."""

import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback
from transformers.trainer_utils import IntervalStrategy

from dsrun.errors import DsrunError
from dsrun.runs.goodput import mean_time_between_failures, save_interval
from dsrun.system.terminal.display import counted
from dsrun.train.base.console import Console
from dsrun.train.base.plan import TrainingPlan
from dsrun.train.base.rank_context import PreemptionHandler, RankContext
from dsrun.train.base.run_records import RunRecords, step_of
from dsrun.train.loop.nan import NanGuard

MEMORY = "dsrun"
"""The key of trainer_state.json's stateful_callbacks under which this stands; no callback has this name."""


class EvaluationLeftError(DsrunError):
    """The ranks left an evaluation, all at the same place, because one of them was asked to stop."""


@dataclass(eq=False)
class StopVote:
    """Whether any rank was asked to stop; all ranks vote, again and again.

    On a GPU the answer is that of the question before: reading the newest would wait for all work queued so far."""

    stopping: PreemptionHandler
    world_size: int
    device: torch.device
    _before: torch.Tensor | None = None

    def any_rank_requested(self) -> bool:
        if not self.stopping.is_on:
            return False
        votes = self._cast()
        known, self._before = (votes if self.device.type == "cpu" else self._before), votes
        return known is not None and bool(known)

    def newest(self) -> bool:
        """The newest answer, whatever it waits for."""
        return self.stopping.is_on and bool(self._cast())

    def _cast(self) -> torch.Tensor:
        votes = torch.tensor(int(self.stopping.is_requested), device=self.device)
        if self.world_size > 1:
            dist.all_reduce(votes)
        return votes


class PreemptionCallback(TrainerCallback):
    """Saves after the step in which the ranks learnt of the request, and ends training when that is done.
    `should_training_stop` is set after the save: the Trainer stores it in the checkpoint, and the resumed run would
    take itself for finished. An evaluation due at that step is left for the resumed run, which makes it before its
    first step."""

    def __init__(self, trainer: Any, stopping: PreemptionHandler) -> None:
        self.trainer = trainer
        self.stopping = stopping

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.stopping.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer.ranks_want_to_stop and state.global_step < state.max_steps:
            self.trainer.interrupted = True
            epochs = args.eval_strategy == IntervalStrategy.EPOCH and args.eval_delay <= state.epoch
            due = control.should_evaluate or (epochs and float(state.epoch).is_integer())
            remember_evaluation(state, due=due)
            # An evaluation may take longer than a scheduler waits between SIGTERM and SIGKILL (SLURM's KillWait: 30 s).
            control.should_save = True
            control.should_evaluate = False

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The stock loop ends an epoch that it left halfway like a whole one.
        if self.trainer.interrupted:
            control.should_evaluate = control.should_save = False

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Asked during the save: there is nothing to save after one more step that this checkpoint has not.
        # Where that failed there is: the next step saves.
        if not (self.trainer.interrupted or self.trainer.save_again) and state.global_step < state.max_steps:
            self.trainer.interrupted = self.trainer.any_rank_stops()
        if self.trainer.interrupted:
            control.should_training_stop = True


class PendingEvaluationCallback(TrainerCallback):
    """Makes the evaluation that an earlier attempt had no time for. The last callback to be added: all others are ready
    for an evaluation then."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.stateful_callbacks.get(MEMORY, {}).get("evaluation_due"):
            self.trainer.make_up_evaluation()
            remember_evaluation(state, due=False)


def remember_evaluation(state: Any, *, due: bool) -> None:
    """Have the next checkpoint record whether the evaluation after its step is still to be made."""
    state.stateful_callbacks[MEMORY] = {"evaluation_due": due}


class HeartbeatCallback(TrainerCallback):
    """The heartbeat of each step, with the `step_times` of the last ones (`dsrun.train.loop.step_times`)."""

    def __init__(self, context: RankContext, step_times: Callable[[], Mapping[str, float]] = dict) -> None:
        self.context = context
        self.step_times = step_times

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.context.progress.step = state.global_step
        self.context.heart.enter("training")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.context.progress.step = state.global_step
        self.context.heart.step(state.global_step, self.step_times())


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
            self.on_change(step, self.seconds, steps, message + (f" (about {counted(steps, 'step')})" if steps else ""))


def adaptive_interval(trainer: Any, plan: TrainingPlan, records: RunRecords, console: Console) -> AdaptiveSaveInterval:
    # Young's optimum (1974), which Daly (2006) refined, from the failures of this very run folder: see runs/goodput.py.
    mtbf = mean_time_between_failures(records.history(), plan.world.size)

    def on_change(step: int, seconds: float, steps: int, message: str) -> None:
        records.event("interval", step=step, seconds=seconds, steps=steps, message=message)
        console.print(f"note: {message}", style="yellow")

    return AdaptiveSaveInterval(trainer, lambda took: save_interval(took, mtbf), on_change, leads=plan.world.is_main)


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
