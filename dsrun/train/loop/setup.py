"""What a Trainer is given beside model and data: its callbacks, in the order in which they must be told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dsrun.runs.folder import RunFolder
from dsrun.runs.goodput import mean_time_between_failures, save_interval
from dsrun.train import memory_fallbacks, report
from dsrun.train.batching.samples import SampleLedger
from dsrun.train.checkpoint.interval import AdaptiveSaveInterval
from dsrun.train.console import Console
from dsrun.train.lifecycle.heartbeat import EventCallback, HeartbeatCallback, SaveTimer
from dsrun.train.lifecycle.preemption_callbacks import PendingEvaluationCallback, PreemptionCallback
from dsrun.train.loop.callbacks import LogLastStep, Profiler, ProveEngine, Recorder, SpikeWatch, StopEarly
from dsrun.train.loop.nan import NanGuard
from dsrun.train.loop.trainer import RunTrainer
from dsrun.train.plan import Plan
from dsrun.train.records import RunRecords


def build_callbacks(
    trainer: RunTrainer,
    plan: Plan,
    folder: RunFolder,
    records: RunRecords,
    console: Console,
    *,
    parameters: int,
) -> None:
    """Add all callbacks to the trainer of this rank."""
    spec, life = plan.recipe.spec, trainer.life
    if spec.early_stopping is not None:
        trainer.add_callback(StopEarly(early_stopping_patience=spec.early_stopping))
    often = save_often(trainer, plan, records, console) if spec.save_every == "auto" else None
    if often:
        trainer.add_callback(often)
    saved = often.saved if often else lambda _step, _seconds: None
    trainer.on_checkpoint = SaveTimer(life, records, trainer.nan_guard, trainer.model, saved)
    trainer.add_callback(PreemptionCallback(trainer, life.stopping))
    trainer.add_callback(ProveEngine(trainer))
    trainer.add_callback(LogLastStep())
    if plan.world.is_main:
        _record(trainer, plan, records, console, parameters)
    if spec.sample_ledger:
        trainer.add_callback(SampleLedger(trainer, folder.path))
    if spec.profile:
        profile = folder.path / "profile"
        trainer.add_callback(Profiler(spec.profile, profile, console, rank=plan.world.rank))
    trainer.add_callback(HeartbeatCallback(life))
    trainer.add_callback(PendingEvaluationCallback(trainer))


def _record(trainer: RunTrainer, plan: Plan, records: RunRecords, console: Console, parameters: int) -> None:
    """On rank 0, which writes and talks."""

    def spiked(step: int, words: str) -> None:
        records.event("spike", step=step, message=words)
        console.say(f"note: step {step}: {words}", style="yellow")

    peak = report.peak_flops(plan.precision) if plan.world.device == "cuda" else None
    trainer.add_callback(Recorder(trainer, console, records.metric, parameters=parameters, peak_flops=peak))
    trainer.add_callback(EventCallback(records))
    trainer.add_callback(SpikeWatch(spiked))


def guard_against_nan(plan: Plan, run: Path, records: RunRecords, console: Console) -> NanGuard:
    """The watch over losses and gradients that --on-nan asks for."""
    skipped = memory_fallbacks.steps_to_skip(run, plan.recipe)

    def tell(step: int, words: str) -> None:
        records.event("nan", step=step, message=words)
        console.say(f"note: step {step} was left out: {words}", style="yellow")

    return NanGuard(
        plan.recipe.spec.on_nan,
        run,
        rank=plan.world.rank,
        world_size=plan.world.size,
        pass_over=skipped,
        wish_rollback=memory_fallbacks.wish_to_skip(run, skipped, main=plan.world.is_main),
        tell=tell,
    )


def save_often(trainer: Any, plan: Plan, records: RunRecords, console: Console) -> AdaptiveSaveInterval:
    """--save-every auto."""
    mtbf = mean_time_between_failures(records.history(), plan.world.size)

    def tell(step: int, seconds: float, steps: int, words: str) -> None:
        records.event("interval", step=step, seconds=seconds, steps=steps, message=words)
        console.say(f"note: {words}", style="yellow")

    return AdaptiveSaveInterval(
        trainer, lambda seconds: save_interval(seconds, mtbf), tell, leads=plan.world.is_main
    )
