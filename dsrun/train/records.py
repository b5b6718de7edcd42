"""What a run writes about itself (run.json, metrics.jsonl, events.jsonl), and prints at its beginning and end."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dsrun.demo.build import DEMO_NAMES
from dsrun.errors import DsrunError
from dsrun.hardware.gpus import peak_bf16_tflops
from dsrun.recipe.precision import Precision
from dsrun.recipe.resolved import without_secrets
from dsrun.runs.attempts import attempt, start_times
from dsrun.runs.folder import RunFolder
from dsrun.runs.goodput import goodput, goodput_line
from dsrun.runs.records import Appender, EventLog, read_records, utc_now, write_json_atomic
from dsrun.runs.stop_request import StopRequest
from dsrun.system.display import masked_values
from dsrun.system.host import git_commit, hostname, versions
from dsrun.train import speed
from dsrun.train.console import Console, duration, number, shortened
from dsrun.train.data.request import PreparedData
from dsrun.train.loop.callbacks import format_metrics
from dsrun.train.loop.evaluation import write_predictions
from dsrun.train.loop.trainer import RunTrainer
from dsrun.train.packing.decide import Batching
from dsrun.zero.offload import OPTIMIZER_ONLY, offloaded_to
from dsrun.zero.ops import stage_of

if TYPE_CHECKING:
    from dsrun.train.plan import Plan


SHOWN_EXAMPLES = 5
NEXT_COMMANDS = (
    "dsrun train --zero 2 --model t5-large                                    # a real T5 on the demo data",
    "dsrun train --zero 2 --model t5-large --train-file my.jsonl              # on yours",
    "dsrun train --zero 3 --model Qwen/Qwen3-0.6B --train-file chats.jsonl --lora 16",
    "dsrun train --help",
)


class RunRecords:
    """The ledger of one attempt; on other ranks than 0 every method does nothing."""

    def __init__(self, folder: RunFolder, *, main: bool) -> None:
        self.folder = folder
        self.main = main
        self._began = time.monotonic()
        if main:
            self._metrics = Appender(folder.metrics)
            self._events = EventLog(folder.events)

    def start(self, plan: Plan, *, resumed_from: Path | None, **facts: Any) -> None:
        """`facts` are those for run.json that do not follow from the plan."""
        if not self.main:
            return
        self.folder.finished.unlink(missing_ok=True)
        write_json_atomic(self.folder.run_json, _description(plan) | facts)
        counts = attempt(os.environ)
        self._events.write("start", world_size=plan.world.size, **counts, **start_times(os.environ))
        if resumed_from:
            self._events.write("resume", path=resumed_from.name, step=step_of(resumed_from), **counts)

    def metric(self, record: dict[str, Any]) -> None:
        self._metrics.append(record)

    def event(self, kind: str, **details: Any) -> None:
        if self.main:
            self._events.write(kind, **details)

    def training(self, step: int, max_steps: int) -> None:
        self.event("training", step=step, max_steps=max_steps, **attempt(os.environ))

    def evaluated(self, step: int, metrics: dict[str, Any]) -> None:
        """An evaluation is done; its `…_seconds` is how long it took."""
        seconds = next((value for name, value in metrics.items() if name.endswith("_seconds")), None)
        self.event("evaluate", step=step, metrics=metrics, seconds=seconds)

    def checkpoint(self, phase: str, folder: Path, seconds: float, details: dict[str, Any]) -> None:
        """A save begins, is complete and visible, or has failed; `seconds` is how long training waited for it."""
        where = {"path": folder.name, "step": step_of(folder)}
        if phase == "begin":
            self.event("checkpoint_begin", **where)
        elif phase == "visible":
            self.event("checkpoint_end", **where, seconds=seconds, **details)
        elif phase == "failed":
            self.event("checkpoint_failed", **where, **details)

    def failure(self, error: BaseException, *, step: int | None, cause: str | None) -> None:
        """Where no supervisor does, which knows which rank failed first."""
        message = str(error) if isinstance(error, DsrunError) else f"{type(error).__name__}: {error}"
        self.event("failure", message=message, step=step, cause=cause or "unknown")

    def interrupted(self, step: int, request: StopRequest) -> None:
        where = {"rank": request.rank, "signalled_host": request.host, "signalled_at": request.time}
        self.event("signal", step=step, signal=request.signal, **where)

    def end(self, step: int) -> None:
        """The last event, and the file by which a scheduler knows that the job need not run again."""
        if self.main:
            self._events.write("end", step=step, seconds=time.monotonic() - self._began, exit_code=0)
            write_json_atomic(self.folder.finished, {"version": 1, "time": utc_now(), "step": step})

    def goodput(self) -> str | None:
        return goodput_line(goodput(self.history())) if self.main else None

    def history(self) -> list[dict[str, Any]]:
        """All events of the folder so far, those of earlier attempts included; none on other ranks."""
        return read_records(self.folder.events) if self.main else []


def step_of(checkpoint: Path) -> int:
    """The optimizer steps behind a checkpoint, whose folder may have been renamed."""
    number = checkpoint.name.rpartition("-")[2]
    if number.isdecimal():
        return int(number)
    return int(json.loads((checkpoint / "trainer_state.json").read_text())["global_step"])


def _description(plan: Plan) -> dict[str, Any]:
    recipe = plan.recipe
    values = dataclasses.asdict(recipe.spec) | recipe.hf
    return {
        "version": 1,
        "time": utc_now(),
        "command": plan.given.command or ["dsrun", "train", *without_secrets(recipe).argv],
        "model": plan.title,
        "model_type": plan.config.model_type,
        "task": "dpo" if recipe.spec.task == "dpo" else plan.task,
        "precision": plan.precision,
        "batch": dataclasses.asdict(plan.batch),
        # Access tokens must not stand in a file that is passed around.
        "deepspeed": masked_values(plan.deepspeed),
        "specs": {"train": masked_values(values)},
        "sources": recipe.sources,
        "host": hostname(),
        "git_commit": git_commit(Path.cwd()),
        "plugin": plan.plugin.facts if plan.plugin else None,
        "speed": speed.record(speed.choices(speed.facts_of(plan)), recipe.spec.speed),
        "world_size": plan.world.size,
        "zero_stage": (plan.deepspeed or {}).get("zero_optimization", {}).get("stage", 0),
        "versions": versions(),
    }


def header(
    console: Console,
    plan: Plan,
    data: PreparedData,
    folder: RunFolder,
    batching: Batching,
    *,
    parameters: int,
    trainable: int,
) -> None:
    """What is about to be trained, on what, and how; after a restart only what it may have changed."""
    spec = plan.recipe.spec
    how = f"{parameters:,} parameters" + _origin(plan)
    if trainable != parameters:
        how += f", {trainable:,} trained ({100 * trainable / parameters:.2g}%)"
    rows = [
        ("model", f"{plan.title} ({plan.config.model_type}, {how})"),
        ("task", f"{spec.task} (beta {spec.dpo_beta:g})" if spec.task == "dpo" else plan.task),
        ("parallel", parallel(plan)),
        ("precision", plan.precision),
        ("data", data.origin),
        ("output", str(folder.path)),
    ]
    if plan.plugin:
        rows.insert(-1, ("plugin", plan.plugin.identity))
    if "train" in plan.phases:
        rank = "GPU" if plan.world.device == "cuda" else "CPU rank"
        rows.insert(3, ("batch", plan.batch.sentence(rank)))
        if packing := batching.sentence(f"{plan.world.size} {rank}{'' if plan.world.size == 1 else 's'}"):
            rows.insert(4, ("packing", packing))
        rows.insert(-2, ("speed", speed.line(speed.choices(speed.facts_of(plan)))))
    if attempt(os.environ)["attempt"]:
        # The first one stands above on the same terminal; a remedy may have changed these.
        rows = [row for row in rows if row[0] in ("parallel", "batch", "packing")]
    console.rows(rows)


def _origin(plan: Plan) -> str:
    if plan.given.model:
        return ", from the script"
    return ", from scratch" if plan.recipe.spec.from_scratch or not plan.recipe.spec.model else ""


def parallel(plan: Plan) -> str:
    """ "ZeRO-2 on 8 GPUs". Evaluation alone needs DeepSpeed's engine under ZeRO-3 only."""
    ranks = f"{plan.world.size} {plan.world.device_name}"
    stage = stage_of(plan.deepspeed)
    if "train" not in plan.phases and stage < 3:
        return ranks
    zero = f"ZeRO-{stage}" if plan.deepspeed is not None else "plain DDP (ZeRO 0)"
    offload = plan.recipe.spec.offload
    place = f", {'optimizer ' if offload == OPTIMIZER_ONLY else ''}offloaded to {offloaded_to(offload)}"
    return f"{zero}{'' if offload == 'none' else place} on {ranks}"


@dataclasses.dataclass(frozen=True)
class FinalResults:
    """The final metrics by split, without prefix, and the files of texts, which rank 0 alone writes."""

    metrics: dict[str, dict[str, float]]
    predictions: list[Path]


def evaluate_and_predict(
    console: Console, plan: Plan, trainer: RunTrainer, data: PreparedData, folder: RunFolder
) -> FinalResults:
    """The final evaluation and, with --do-predict, the test split."""
    results = FinalResults({}, [])
    for split, rows, prefix in (("validation", data.validation, "eval"), ("test", data.test, "test")):
        if split not in plan.phases or rows is None:
            continue
        metrics = _already_known(trainer, split) or trainer.evaluate(rows, metric_key_prefix=prefix)
        results.metrics[split] = {name.removeprefix(f"{prefix}_"): value for name, value in metrics.items()}
        console.print(f"{split}  {format_metrics(metrics, prefix + '_', trainer.plugin_metrics)}")
        examples = trainer.last_evaluation.examples if trainer.last_evaluation else []
        if examples and plan.world.is_main:
            file = folder.path / f"predictions-{split}.jsonl"
            write_predictions(examples, file)
            results.predictions.append(file)
            _show(console, examples)
    return results


def _already_known(trainer: RunTrainer, split: str) -> dict[str, float] | None:
    """The metrics of the last evaluation in training, where it saw the very model that is now final."""
    if split != "validation" or trainer.last_metrics is None or trainer.args.load_best_model_at_end:
        return None
    step, metrics = trainer.last_metrics
    return metrics if step == trainer.state.global_step else None


def already_finished(state: Any) -> str:
    if state.global_step < state.max_steps:
        why, longer = f"stopped early at step {state.global_step:,}", "a larger --early-stopping"
    else:
        why, longer = f"all {state.global_step:,} steps are done", "--max-steps or --num-train-epochs"
    return f"already finished: {why} ({longer} trains on, --resume never starts anew)"


def best_checkpoint(trainer: RunTrainer) -> str | None:
    """ "bleu 31.2 at step 4000"; None where the run did not look for the best."""
    state = trainer.state
    if state.best_metric is None:
        return None
    name = str(trainer.args.metric_for_best_model).removeprefix("eval_")
    return f"{name} {number(float(state.best_metric))} at step {state.best_global_step}"


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
    state = trainer.state
    rows = []
    if "train" in plan.phases:
        early = f" of {state.max_steps:,}, stopped early" if state.global_step < state.max_steps else ""
        when = ", already finished" if trainer.already_finished else f" in {duration(seconds)}"
        rows.append(("trained", f"{state.global_step:,} steps{early}{when}"))
    if best := best_checkpoint(trainer):
        rows.append(("best", best))
    if folder.adapter.is_dir():
        rows.append(("adapter", str(folder.adapter)))
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
        reference = "" if right else f"   (reference: {shortened(example.reference)})"
        console.print(f"  {shortened(example.source)}")
        console.print(f"    -> {shortened(example.prediction)}{reference}")
