"""What is recorded of training: metrics and events for the run folder, figures for the user, losses that stand out. Its
model FLOPs are read off the parameters of the model as it is trained."""

import math
import os
import re
import resource
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import psutil
import torch
from torch import nn
from transformers import TrainerCallback

from dsrun.errors import UsageError
from dsrun.events import PROGRESS_S
from dsrun.hardware.gpu_facts import peak_bf16_tflops
from dsrun.recipe.precision import TrainingPrecision
from dsrun.runs.attempts import attempt
from dsrun.train.base.console import Console, TrainingBar, duration, number
from dsrun.train.base.run_records import RunRecords
from dsrun.train.loop.trainer import RunTrainer
from dsrun.train.model.quantization import elements
from dsrun.zero.memory.flops import AttentionShape, MatrixWeights, ModelFlops, model_flops
from dsrun.zero.memory.model.widths import architecture_of

SHOWN_METRICS = ("loss", "perplexity", "rewards/accuracies", "rewards/margins", "exact_match", "bleu", "chrf", "rougeL")
REMEMBERED = 50
# Fewer losses do not show how much they scatter.
FEWEST = 12
LARGEST_SCORE = 8.0
# A loss that hardly scatters at all makes any change look large.
SMALLEST_JUMP = 1.2


@dataclass(eq=False)
class StepRecorder(TrainerCallback):
    trainer: RunTrainer
    console: Console
    write: Any
    _: KW_ONLY
    flops: ModelFlops | None = None
    peak_flops: float | None = None
    bar: TrainingBar = field(init=False)
    _mark: tuple[float, int, int, float] = field(default=(0.0, 0, 0, 0.0), init=False)
    _work_before: list[int] = field(default_factory=lambda: [0] * 5, init=False)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar = TrainingBar(self.console, state.max_steps, state.global_step)
        self._set_mark()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar.advance(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        logs = logs or {}
        if "loss" in logs:
            record = self._step_record(state, logs)
            self.write(record)
            self.bar.figures(state.global_step, record, last=state.global_step >= state.max_steps)
        elif any(name.startswith("eval_") for name in logs):
            self.write({"step": state.global_step, **logs})

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, float], **kwargs: Any) -> None:
        if not self.trainer.is_in_train:
            return
        shown = format_metrics(metrics, "eval_", self.trainer.plugin_metrics)
        self.console.print(f"step {state.global_step}  evaluation  {shown}")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
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


class EventCallback(TrainerCallback):
    """The events of training other than saves. Rank 0 only."""

    def __init__(self, records: RunRecords, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.records = records
        self.clock = clock
        self._reported = clock()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.records.event("training", step=state.global_step, max_steps=state.max_steps, **attempt(os.environ))
        self._reported = self.clock()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Shows how far a run was that is killed.
        if self.clock() - self._reported >= PROGRESS_S:
            self._reported = self.clock()
            self.records.event("progress", step=state.global_step)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, float], **kwargs: Any) -> None:
        seconds = next((value for name, value in metrics.items() if name.endswith("_seconds")), None)
        self.records.event("evaluate", step=state.global_step, metrics=metrics, seconds=seconds)


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


# Keys and values of attention over the source, in transformers' encoder-decoders: T5's names, and BART's.
_CROSS = re.compile(
    r"(EncDecAttention\.[kv]|(encoder_attn|cross_?attn|crossattention)\.(self\.)?([kv]_proj|key|value))\."
)
_EXPERTS = re.compile(r"\.experts\.")


def flops_of(model: Any) -> ModelFlops | None:
    """Of a causal language model or an encoder-decoder, with or without adapters, sharded or quantised. None where the
    config does not say how many layers and heads it has."""
    try:
        settings = model.config.to_dict() | {"is_encoder_decoder": model.config.is_encoder_decoder}
        architecture = architecture_of(settings, ())
    except UsageError:
        return None
    decoder, encoder = architecture.decoder, architecture.encoder
    per_expert = decoder.experts_per_token / decoder.experts if decoder.experts else 1.0
    attention = [AttentionShape(side.layers, side.queries) for side in (decoder, encoder) if side]
    return model_flops(_matrices(model, per_expert), *attention)


def _matrices(model: Any, per_expert: float) -> Iterator[MatrixWeights]:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    output = getattr(base.get_output_embeddings(), "weight", None)
    tables = {id(each.weight) for each in model.modules() if isinstance(each, nn.Embedding)}
    source = {id(each) for each in base.get_encoder().parameters()} if model.config.is_encoder_decoder else set()
    for name, parameter in model.named_parameters():
        is_table = id(parameter) in tables and parameter is not output  # a tied one is a matrix as well
        if is_table or len(getattr(parameter, "ds_shape", parameter.shape)) < 2:
            continue
        of_source = parameter is not output and (id(parameter) in source or bool(_CROSS.search(name)))
        share = per_expert if _EXPERTS.search(name) else 1.0
        yield MatrixWeights(elements(parameter) * share, of_source, parameter.requires_grad)


def peak_flops(precision: TrainingPrecision) -> float | None:
    """Dense peak of this GPU in FLOP/s at the training precision, where the table knows it."""
    tflops = peak_bf16_tflops(torch.cuda.get_device_name())
    return tflops * 1e12 if tflops and precision != "fp32" else None
