"""The Trainer's callbacks, in the order in which they must be called; events, saves and --save-every auto."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from dsrun.runs.folder import RunFolder
from dsrun.runs.goodput import mean_time_between_failures, save_interval
from dsrun.train.console import Console
from dsrun.train.loop.callbacks import (
    EngineCheck,
    LogLastStep,
    LossSpikeDetector,
    Profiler,
    Recorder,
    StepIntervals,
    StopEarly,
)
from dsrun.train.loop.loaders import SampleLedger
from dsrun.train.loop.nan import NanGuard
from dsrun.train.loop.preemption import HeartbeatCallback, PendingEvaluationCallback, PreemptionCallback
from dsrun.train.loop.sample_prompts import SamplePrompts
from dsrun.train.loop.trainer import RunTrainer
from dsrun.train.loss.plugin_loss import PluginLoss
from dsrun.train.loss.probe import CausalityCheck, SumCheck
from dsrun.train.model.flops import flops_of
from dsrun.train.plan import Plan, rollback_recorder, steps_to_skip
from dsrun.train.rank_context import RankContext
from dsrun.train.records import RunRecords, peak_flops, step_of

# The first save comes early, as nothing is known before it.
FIRST_SAVE_SECONDS = 60.0
# By what factor the interval must change to be reported again.
REPORTED_CHANGE = 2.0

PROGRESS_SECONDS = 60.0


class AdaptiveSaveInterval(TrainerCallback):
    """Saves when the interval is over. The clock of the one that `leads`, rank 0, decides: its request travels in the
    sum that all ranks form before the next step. `interval` gives the seconds between saves from the seconds that a
    save takes; `on_change` (step, seconds, steps, message) is called for each interval that is chosen."""

    def __init__(
        self,
        trainer: Any,
        interval: Callable[[float], float],
        on_change: Callable[[int, float, int, str], None],
        *,
        leads: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.trainer = trainer
        self.interval = interval
        self.on_change = on_change
        self.leads = leads
        self.clock = clock
        self.seconds = FIRST_SAVE_SECONDS
        self._reported = 0.0
        self._last_save = self._last_step = 0.0
        self._step_seconds = 0.0

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


def build_callbacks(trainer: RunTrainer, plan: Plan, folder: RunFolder, records: RunRecords, console: Console) -> None:
    spec, context = plan.recipe.spec, trainer.context
    if spec.early_stopping is not None:
        trainer.add_callback(StopEarly(early_stopping_patience=spec.early_stopping))
    often = adaptive_interval(trainer, plan, records, console) if spec.save_every == "auto" else None
    if often:
        trainer.add_callback(often)
    saved = often.saved if often else lambda _step, _seconds: None
    trainer.on_checkpoint = SaveTimer(context, records, trainer.nan_guard, trainer.model, saved)
    trainer.add_callback(PreemptionCallback(trainer, context.stopping))
    trainer.add_callback(EngineCheck(trainer))
    if plan.task == "causal-lm" and not spec.force:
        trainer.add_callback(CausalityCheck(trainer))
    if isinstance(trainer.loss_of_model, PluginLoss) and not spec.force:
        trainer.add_callback(SumCheck(trainer))
    trainer.add_callback(StepIntervals())
    trainer.add_callback(LogLastStep())
    if plan.world.is_main:
        peak = peak_flops(plan.precision) if plan.world.device == "cuda" else None
        flops = flops_of(trainer.model) if peak else None
        trainer.add_callback(Recorder(trainer, console, records.metric, flops=flops, peak_flops=peak))
        trainer.add_callback(EventCallback(records))
        trainer.add_callback(LossSpikeDetector(_reporter("spike", "", records, console)))
    if spec.sample_prompts:
        prompts = Path(spec.sample_prompts).expanduser()
        prefix = None if plan.task == "causal-lm" else spec.source_prefix or ""
        trainer.add_callback(SamplePrompts(trainer, prompts, folder.path, console, prefix=prefix))
    if spec.sample_ledger:
        trainer.add_callback(SampleLedger(trainer, folder.path))
    if spec.profile:
        trainer.add_callback(Profiler(spec.profile, folder.path / "profile", console, rank=plan.world.rank))
    for each in plan.plugin.callbacks() if plan.plugin else ():
        trainer.add_callback(each)
    trainer.add_callback(trainer.step_times)
    trainer.add_callback(HeartbeatCallback(context, trainer.step_times.recent))
    trainer.add_callback(PendingEvaluationCallback(trainer))


def _reporter(kind: str, what: str, records: RunRecords, console: Console) -> Callable[[int, str], None]:
    """Writes an event (step, message) and prints it."""

    def report(step: int, message: str) -> None:
        records.event(kind, step=step, message=message)
        console.print(f"note: step {step}{what}: {message}", style="yellow")

    return report


def guard_against_nan(plan: Plan, run: Path, records: RunRecords, console: Console) -> NanGuard:
    skipped = steps_to_skip(run, plan.recipe)
    return NanGuard(
        plan.recipe.spec.on_nan,
        run,
        rank=plan.world.rank,
        skipped_steps=skipped,
        record_rollback=rollback_recorder(run, skipped, main=plan.world.is_main),
        on_skip=_reporter("nan", " was left out", records, console),
    )


def adaptive_interval(trainer: Any, plan: Plan, records: RunRecords, console: Console) -> AdaptiveSaveInterval:
    mtbf = mean_time_between_failures(records.history(), plan.world.size)

    def on_change(step: int, seconds: float, steps: int, message: str) -> None:
        records.event("interval", step=step, seconds=seconds, steps=steps, message=message)
        console.print(f"note: {message}", style="yellow")

    return AdaptiveSaveInterval(
        trainer, lambda seconds: save_interval(seconds, mtbf), on_change, leads=plan.world.is_main
    )


class EventCallback(TrainerCallback):
    """The events of training other than saves. Rank 0 only."""

    def __init__(self, records: RunRecords, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.records = records
        self.clock = clock
        self._reported = clock()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.records.training(state.global_step, state.max_steps)
        self._reported = self.clock()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Shows how far a run was that is killed.
        if self.clock() - self._reported >= PROGRESS_SECONDS:
            self._reported = self.clock()
            self.records.event("progress", step=state.global_step)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, float], **kwargs: Any) -> None:
        self.records.evaluated(state.global_step, metrics)


class SaveTimer:
    """What goes with a save, on all ranks: no NaN is saved, the heartbeat and the events record it. `saved` (step,
    seconds) is called with the time that training waited."""

    def __init__(
        self,
        context: RankContext,
        records: RunRecords,
        guard: NanGuard,
        model: Any,
        saved: Callable[[int, float], None] = lambda _step, _seconds: None,
    ) -> None:
        self.context = context
        self.records = records
        self.guard = guard
        self.model = model
        self.saved = saved

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
