"""The words at the beginning and the end of a run, and its final evaluation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dsrun.demo.build import DEMO_NAMES
from dsrun.hardware.gpus import peak_bf16_tflops
from dsrun.runs.attempts import attempt
from dsrun.runs.folder import RunFolder
from dsrun.train.console import Console, duration, number
from dsrun.train.data.prepare import PreparedData
from dsrun.train.loop import engine
from dsrun.train.loop.callbacks import format_metrics
from dsrun.train.loop.engine import Precision
from dsrun.train.loop.evaluation import write_predictions
from dsrun.train.loop.trainer import RunTrainer

if TYPE_CHECKING:
    from dsrun.train.plan import Plan

SHOWN_EXAMPLES = 5
SHOWN_LENGTH = 200
"""Characters: an article to be summarised would fill the screen, and scroll the scores away."""

NEXT_COMMANDS = (
    "dsrun train --zero 2 --model t5-large                                    # a real T5 on the demo data",
    "dsrun train --zero 2 --model t5-large --train-file my.jsonl              # on yours",
    "dsrun train --zero 3 --model Qwen/Qwen3-0.6B --train-file chats.jsonl --lora 16",
    "dsrun train --help",
)


def header(
    console: Console, plan: Plan, data: PreparedData, folder: RunFolder, *, parameters: int, trainable: int
) -> None:
    """What is about to be trained, on what, and how; after a restart only what it may have changed."""
    spec = plan.recipe.spec
    how = f"{parameters:,} parameters" + (", from scratch" if spec.from_scratch or not spec.model else "")
    if trainable != parameters:
        how += f", {trainable:,} trained ({100 * trainable / parameters:.2g}%)"
    rows = [
        ("model", f"{plan.title} ({plan.config.model_type}, {how})"),
        ("task", plan.task),
        ("parallel", _parallel(plan)),
        ("precision", plan.precision),
        ("data", data.origin),
        ("output", str(folder.path)),
    ]
    if "train" in plan.phases:
        words = plan.batch.sentence("GPU" if plan.world.device == "cuda" else "CPU rank")
        rows.insert(3, ("batch", words))
    if attempt(os.environ)["attempt"]:
        # The first one stands above on the same terminal; a remedy may have changed these.
        rows = [row for row in rows if row[0] in ("parallel", "batch")]
    console.rows(rows)


def _parallel(plan: Plan) -> str:
    """Who shares the work, and how: "ZeRO-2 on 8 GPUs". Evaluation alone needs DeepSpeed's engine under ZeRO-3 only."""
    ranks = f"{plan.world.size} {plan.world.device_name}"
    stage = engine.stage_of(plan.deepspeed)
    if "train" not in plan.phases and stage < 3:
        return ranks
    zero = f"ZeRO-{stage}" if plan.deepspeed is not None else "plain DDP (ZeRO 0)"
    offload = plan.recipe.spec.offload
    return f"{zero}{'' if offload == 'none' else f', offloaded to {offload}'} on {ranks}"


def evaluate_and_predict(
    console: Console, plan: Plan, trainer: RunTrainer, data: PreparedData, folder: RunFolder
) -> list[Path]:
    """The final evaluation and, with --do-predict, the test split; returns the files that the texts went into.

    Rank 0 alone writes them, and alone knows of any.
    """
    written = []
    for split, rows, prefix in (("validation", data.validation, "eval"), ("test", data.test, "test")):
        if split not in plan.phases or rows is None:
            continue
        metrics = _already_known(trainer, split) or trainer.evaluate(rows, metric_key_prefix=prefix)
        console.print(f"{split}  {format_metrics(metrics, prefix + '_')}")
        examples = trainer.last_evaluation.examples
        if examples and plan.world.is_main:
            file = folder.path / f"predictions-{split}.jsonl"
            write_predictions(examples, file)
            written.append(file)
            _show(console, examples)
    return written


def _already_known(trainer: RunTrainer, split: str) -> dict[str, float] | None:
    """The metrics of the last evaluation in training, where it saw the very model that is now final."""
    if split != "validation" or trainer.last_metrics is None or trainer.args.load_best_model_at_end:
        return None
    step, metrics = trainer.last_metrics
    return metrics if step == trainer.state.global_step else None


def already_finished(state: Any) -> str:
    """What to say where training had come to its end before; `state` is the Trainer's."""
    if state.global_step < state.max_steps:
        why, longer = f"stopped early at step {state.global_step:,}", "a larger --early-stopping"
    else:
        why, longer = f"all {state.global_step:,} steps are done", "--max-steps or --num-train-epochs"
    return f"already finished: {why} ({longer} trains on, --resume never starts anew)"


def summary(
    console: Console,
    plan: Plan,
    trainer: RunTrainer,
    folder: RunFolder,
    predictions: list[Path],
    *,
    seconds: float,
    goodput: str | None,
) -> None:
    """What came out of the run and where it lies; `goodput` says where the time went, if it is told here."""
    state = trainer.state
    rows = []
    if "train" in plan.phases:
        early = f" of {state.max_steps:,}, stopped early" if state.global_step < state.max_steps else ""
        when = ", already finished" if trainer.already_finished else f" in {duration(seconds)}"
        rows.append(("trained", f"{state.global_step:,} steps{early}{when}"))
    if state.best_metric is not None:
        name = str(trainer.args.metric_for_best_model).removeprefix("eval_")
        rows.append(("best", f"{name} {number(float(state.best_metric))} at step {state.best_global_step}"))
    if (folder.path / "adapter").is_dir():
        rows.append(("adapter", str(folder.path / "adapter")))
    if "train" in plan.phases:
        rows.append(("model", str(folder.model)))
    rows += [("predictions", str(file)) for file in predictions]
    rows += [("time", goodput)] if goodput and "train" in plan.phases else []
    console.print("")
    console.rows(rows)
    if plan.title in DEMO_NAMES:
        console.print("")
        console.print("next, on your own machine:")
        for line in NEXT_COMMANDS:
            console.print(f"  {line}")


def peak_flops(precision: Precision) -> float | None:
    """Dense peak of this GPU in FLOP/s at the training precision, where the table knows it."""
    tflops = peak_bf16_tflops(torch.cuda.get_device_name())
    return tflops * 1e12 if tflops and precision != "fp32" else None


def _show(console: Console, examples: list[Any]) -> None:
    console.print("")
    # Spread over the data, which is often sorted by something.
    for example in examples[:: max(1, len(examples) // SHOWN_EXAMPLES)][:SHOWN_EXAMPLES]:
        right = example.prediction.strip() == example.reference.strip()
        reference = "" if right else f"   (reference: {in_a_line(example.reference)})"
        console.print(f"  {in_a_line(example.source)}")
        console.print(f"    -> {in_a_line(example.prediction)}{reference}")


def in_a_line(text: str) -> str:
    """The beginning of a text for the screen; the file of predictions has the whole."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_LENGTH else line[: SHOWN_LENGTH - 2].rstrip() + " …"
