"""The Trainer's callbacks in the order in which they must be called, and those around single steps."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import EarlyStoppingCallback, TrainerCallback
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from dsrun.errors import one_line
from dsrun.runs.folder import RunFolder
from dsrun.system.terminal.display import counted
from dsrun.system.terminal.secrets import masked_values
from dsrun.train.base.console import Console
from dsrun.train.base.plan import TrainingPlan
from dsrun.train.base.refusals import notice_of
from dsrun.train.base.run_records import RunRecords, event_reporter
from dsrun.train.loop import engine, preemption
from dsrun.train.loop.generation import SamplePrompts
from dsrun.train.loop.loaders import SampleLedger
from dsrun.train.loop.recording import EventCallback, LossSpikeDetector, StepRecorder, flops_of, peak_flops
from dsrun.train.loop.trainer import RunTrainer
from dsrun.train.loss.probe import check_causality, check_sum

logger = logging.getLogger(__name__)


def build_callbacks(
    trainer: RunTrainer, plan: TrainingPlan, folder: RunFolder, records: RunRecords, console: Console
) -> None:
    spec, context = plan.recipe.spec, trainer.context
    if spec.early_stopping is not None:
        trainer.add_callback(StopEarly(early_stopping_patience=spec.early_stopping))
    often = preemption.adaptive_interval(trainer, plan, records, console) if spec.save_every == "auto" else None
    if often:
        trainer.add_callback(often)
    saved = often.saved if often else lambda _step, _seconds: None
    trainer.on_checkpoint = preemption.SaveTimer(context, records, trainer.nan_guard, trainer.model, saved)
    # After the Trainer's own DefaultFlowCallback, the first of all: it looks at the evaluation that this one asks for.
    trainer.add_callback(preemption.PreemptionCallback(trainer, context.stopping))
    checks = [check_causality] if plan.task == "causal-lm" else []
    checks += [check_sum] if plan.plugin and plan.plugin.has("loss") else []
    trainer.add_callback(StartChecks(trainer, () if spec.force else checks))
    trainer.add_callback(StepIntervals())
    if plan.world.is_main:
        peak = peak_flops(plan.precision) if plan.world.device == "cuda" else None
        flops = flops_of(trainer.model) if peak else None
        trainer.add_callback(StepRecorder(trainer, console, records.metric, flops=flops, peak_flops=peak))
        trainer.add_callback(EventCallback(records))
        trainer.add_callback(LossSpikeDetector(event_reporter(records, console, "spike")))
    if spec.sample_prompts:
        prompts = Path(spec.sample_prompts).expanduser()
        prefix = None if plan.task == "causal-lm" else spec.source_prefix or ""
        trainer.add_callback(SamplePrompts(trainer, prompts, folder.path, console, prefix=prefix))
    if spec.sample_ledger:
        trainer.add_callback(SampleLedger(trainer, folder.path))
    if spec.profile:
        trainer.add_callback(StepProfiler(spec.profile, folder.path / "profile", console, rank=plan.world.rank))
    # Before step_times, whose steps include the time that they take.
    for each in plan.plugin.callbacks() if plan.plugin else ():
        trainer.add_callback(each)
    trainer.add_callback(trainer.step_times)
    trainer.add_callback(preemption.HeartbeatCallback(context, trainer.step_times.recent))
    trainer.add_callback(preemption.PendingEvaluationCallback(trainer))


class StartChecks(TrainerCallback):
    """Before the first step: the engine and ZeRO stage are those that were asked for, and the `checks` of the trainer
    refuse nothing."""

    def __init__(self, trainer: RunTrainer, checks: Sequence[Callable[[Any], None]]) -> None:
        self.trainer, self.checks = trainer, checks

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trained = self.trainer.model_wrapped
        engine.assert_engine_matches(trained, self.trainer.ds_config)
        if type(trained).__name__ == "DeepSpeedEngine":
            # Keys of trackers, which are set up by now, stay out of checkpoints: their shards hold DeepSpeed's JSON.
            trained.config = masked_values(trained.config)
        for check in self.checks:
            check(self.trainer)


class StopEarly(EarlyStoppingCallback):
    """Early stopping whose count of evaluations without a better metric survives a resume: the stock callback would
    count anew."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        # A checkpoint that knows nothing of this callback has no place for it, and the next save would fail.
        stored = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        self.early_stopping_patience_counter = stored.get("attributes", {}).get("early_stopping_patience_counter", 0)
        if self._patience_is_spent():
            control.should_training_stop = True

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any) -> None:
        super().on_evaluate(args, state, control, metrics, **kwargs)
        if self._patience_is_spent():
            # As at the last step: the end is in a checkpoint, however rarely the run saves.
            control.should_save = args.save_strategy != "no"

    def _patience_is_spent(self) -> bool:
        return self.early_stopping_patience_counter >= self.early_stopping_patience


class StepIntervals(TrainerCallback):
    """Logs, evaluates and saves as often as this start asks: a checkpoint brings the intervals of the run that saved
    it, and the Trainer follows those. Logs the last steps, too: on all ranks, as logging gathers."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        state.compute_steps(args, state.max_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= state.max_steps:
            control.should_log = True


class StepProfiler(TrainerCallback):
    """Traces `steps` optimizer steps with torch.profiler, after two that warm caches and kernels up."""

    WARM_UP = 2

    def __init__(self, steps: int, folder: Path, console: Console, *, rank: int) -> None:
        self.steps = steps
        self.file = folder / f"trace-rank{rank}.json"
        self.console = console

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if args.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        schedule = torch.profiler.schedule(wait=0, warmup=self.WARM_UP, active=self.steps, repeat=1)
        self._profiler = torch.profiler.profile(activities=activities, schedule=schedule, on_trace_ready=self._finish)
        self._profiler.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._profiler.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._profiler.stop()

    def _finish(self, profiler: torch.profiler.profile) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(self.file))
        key = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        self.console.print(profiler.key_averages().table(sort_by=key, row_limit=12, max_name_column_width=40))
        self.console.print(f"trace of {counted(self.steps, 'step')}: {self.file} (open it in ui.perfetto.dev)")


class GuardedTracker(TrainerCallback):
    """A tracker's callback until it raises: that is reported once, and it is not called again."""

    def __init__(self, name: str, callback: TrainerCallback, notify: Callable[[str], None]) -> None:
        self.name = name
        self.callback = callback
        self.notify = notify
        self.has_failed = False

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return super().__getattribute__(name)
        event = getattr(self.callback, name)

        def call(args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            if self.has_failed:
                return None
            try:
                return event(args, state, control, **kwargs)
            except Exception as error:
                logger.exception("tracker %s failed in %s", self.name, name)
                self.has_failed = True
                why = f"{type(error).__name__}: {one_line(error)}"
                self.notify(notice_of("tracker.failed", tracker=self.name, error=why))
                return None

        return call


def guard_trackers(handler: Any, notify: Callable[[str], None]) -> None:
    """Put a `GuardedTracker` around each tracker's callback of a Trainer's CallbackHandler."""
    names = {kind: name for name, kind in INTEGRATION_TO_CALLBACK.items()}
    handler.callbacks = [
        GuardedTracker(names[type(each)], each, notify) if type(each) in names else each for each in handler.callbacks
    ]
