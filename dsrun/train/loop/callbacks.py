"""What happens around training steps: records for the run folder, figures for the user, profiling, stopping."""

from __future__ import annotations

import math
import resource
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import EarlyStoppingCallback, TrainerCallback

from dsrun.train.console import Console, TrainingBar, duration, number
from dsrun.train.loop import engine
from dsrun.train.loop.trainer import RunTrainer
from dsrun.zero.memory.flops import ModelFlops

SHOWN_METRICS = ("loss", "perplexity", "rewards/accuracies", "rewards/margins", "exact_match", "bleu", "chrf", "rougeL")

REMEMBERED = 50
# Fewer losses do not show how much they scatter.
FEWEST = 12
LARGEST_SCORE = 8.0
# A loss that hardly scatters at all makes any change look large.
SMALLEST_JUMP = 1.2


class EngineCheck(TrainerCallback):
    """Before the first step: the engine and ZeRO stage are those that were asked for."""

    def __init__(self, trainer: RunTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        engine.assert_engine_matches(self.trainer.model_wrapped, self.trainer.ds_config)
        engine.mask_stored_config(self.trainer.model_wrapped)


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
    it, and the Trainer follows those."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        state.compute_steps(args, state.max_steps)


class LogLastStep(TrainerCallback):
    """Logs the last steps, too. On all ranks, as logging gathers."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= state.max_steps:
            control.should_log = True


class Recorder(TrainerCallback):
    def __init__(
        self,
        trainer: RunTrainer,
        console: Console,
        write: Any,
        *,
        flops: ModelFlops | None = None,
        peak_flops: float | None = None,
    ) -> None:
        self.trainer = trainer
        self.console = console
        self.write = write
        self.flops = flops
        self.peak_flops = peak_flops
        self.bar: TrainingBar | None = None
        self._mark = (0.0, 0, 0, 0.0)
        self._work_before = [0] * 5

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar = TrainingBar(self.console, state.max_steps, state.global_step)
        self._set_mark()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.bar:
            self.bar.advance(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        logs = logs or {}
        if "loss" in logs:
            record = self._step_record(state, logs)
            self.write(record)
            if self.bar:
                self.bar.figures(state.global_step, record, last=state.global_step >= state.max_steps)
        elif any(name.startswith("eval_") for name in logs):
            self.write({"step": state.global_step, **logs})

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, float], **kwargs: Any) -> None:
        if not self.trainer.is_in_train:
            return
        shown = format_metrics(metrics, "eval_", self.trainer.plugin_metrics)
        self.console.print(f"step {state.global_step}  evaluation  {shown}")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.bar:
            self.bar.stop()

    def _set_mark(self) -> None:
        trainer = self.trainer
        self._mark = (time.monotonic(), trainer.tokens_seen, trainer.cells_seen, trainer.seconds_not_training)

    def _step_record(self, state: Any, logs: dict[str, float]) -> dict[str, Any]:
        then, tokens, cells, pauses = self._mark
        seconds = max(time.monotonic() - then - (self.trainer.seconds_not_training - pauses), 1e-9)
        self._set_mark()
        tokens_seen, cells_seen = self._mark[1:3]
        speed = (tokens_seen - tokens) / seconds
        return {
            "step": state.global_step,
            "epoch": state.epoch,
            "loss": logs["loss"],
            "lr": logs.get("learning_rate"),
            "grad_norm": logs.get("grad_norm"),
            "tokens": tokens_seen,
            "tokens_per_s": speed,
            "mfu": self._mfu(seconds),
            "padding": 1 - (tokens_seen - tokens) / max(cells_seen - cells, 1),
            # Those of the loss itself, such as rewards/margins and loss/SET.
            **{name: value for name, value in logs.items() if "/" in name},
            **memory(),
        }

    def _mfu(self, seconds: float) -> float | None:
        """Model FLOPs utilisation since it was last asked for: those that were needed, over the GPUs' dense peak."""
        if not self.peak_flops or self.flops is None:
            return None
        work = self.trainer.work_done
        needed = self.flops.of([now - before for now, before in zip(work, self._work_before, strict=True)])
        self._work_before = work
        return needed / (seconds * self.peak_flops * self.trainer.split.world_size)


class Profiler(TrainerCallback):
    """Traces `steps` optimizer steps with torch.profiler, after two that warm caches and kernels up."""

    WARM_UP = 2

    def __init__(self, steps: int, folder: Path, console: Console, *, rank: int) -> None:
        self.steps = steps
        self.file = folder / f"trace-rank{rank}.json"
        self.console = console
        self._profiler: torch.profiler.profile | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if args.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        schedule = torch.profiler.schedule(wait=0, warmup=self.WARM_UP, active=self.steps, repeat=1)
        self._profiler = torch.profiler.profile(activities=activities, schedule=schedule, on_trace_ready=self._finish)
        self._profiler.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._profiler:
            self._profiler.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._profiler:
            self._profiler.stop()
            self._profiler = None

    def _finish(self, profiler: torch.profiler.profile) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(self.file))
        key = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        self.console.print(profiler.key_averages().table(sort_by=key, row_limit=12, max_name_column_width=40))
        self.console.print(f"trace of {self.steps} steps: {self.file} (open it in ui.perfetto.dev)")


def memory() -> dict[str, int]:
    """Bytes: this rank's resident memory now and at most, and the same on its GPU."""
    resident = psutil.Process().memory_info().rss
    # Linux counts ru_maxrss in KiB (getrusage(2)), and brings it up to date only now and then.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    figures = {"host_memory": resident, "host_memory_peak": max(peak, resident)}
    if torch.cuda.is_available():
        figures |= {"gpu_memory": torch.cuda.memory_reserved(), "gpu_memory_peak": torch.cuda.max_memory_reserved()}
    return figures


def format_metrics(metrics: dict[str, Any], prefix: str, also: Sequence[str] = ()) -> str:
    names = [name for name in (*SHOWN_METRICS, *also) if prefix + name in metrics]
    found = [(name, float(metrics[prefix + name])) for name in names]
    # Scores run from 0 to 100; loss, perplexity and those in `also` have no such scale.
    figures = [number(value) if name in ("loss", "perplexity", *also) else f"{value:.2f}" for name, value in found]
    parts = [f"{name.replace('_', ' ')} {figure}" for (name, _), figure in zip(found, figures, strict=True)]
    # Those of the sets of a mixture.
    losses = {name.removeprefix(prefix): metrics[name] for name in metrics if name.endswith("_loss")}
    of_sets = {name.removesuffix("_loss"): value for name, value in losses.items() if name not in ("loss", *also)}
    parts += [f"{name} {number(float(value))}" for name, value in of_sets.items()]
    seconds = metrics.get(f"{prefix}seconds")
    return "  ".join(parts) + (f"  ({duration(seconds)})" if seconds else "")


def robust_z(value: float, others: Sequence[float]) -> float:
    """How many standard deviations `value` lies above the median of `others`, their scatter taken from the median
    absolute deviation, which outliers do not widen (Iglewicz and Hoaglin 1993; 0.6745 is its value for a normal
    distribution of deviation 1). Infinity where the others are all alike."""
    middle = statistics.median(others)
    deviation = statistics.median(abs(each - middle) for each in others)
    distance = value - middle
    if deviation == 0:
        return math.inf if distance > 0 else 0.0
    return 0.6745 * distance / deviation


class LossSpikeDetector(TrainerCallback):
    """Reports logged losses that stand out. Rank 0 only."""

    def __init__(self, on_spike: Callable[[int, str], None]) -> None:
        self.on_spike = on_spike
        self._losses: deque[float] = deque(maxlen=REMEMBERED)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        loss = (logs or {}).get("loss")
        if loss is None or not math.isfinite(loss):
            return
        if len(self._losses) >= FEWEST:
            usual = statistics.median(self._losses)
            if loss > SMALLEST_JUMP * usual and robust_z(loss, self._losses) > LARGEST_SCORE:
                self.on_spike(state.global_step, f"the loss rose to {number(loss)}, from about {number(usual)}")
        self._losses.append(loss)
