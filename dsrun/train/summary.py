"""What a run prints of itself at its beginning and at its end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dsrun.demo.build import DEMO_NAMES
from dsrun.runs.attempts import attempt
from dsrun.runs.folder import RunFolder
from dsrun.train.base import speed
from dsrun.train.base.console import Console, duration, number
from dsrun.train.base.plan import Plan
from dsrun.train.data.request import PreparedData
from dsrun.train.loop.trainer import RunTrainer
from dsrun.train.packing.decide import Batching
from dsrun.zero.offload import OPTIMIZER_ONLY, offloaded_to
from dsrun.zero.ops import stage_of

NEXT_COMMANDS = (
    "dsrun train --zero 2 --model t5-large                                    # a real T5 on the demo data",
    "dsrun train --zero 2 --model t5-large --train-file my.jsonl              # on yours",
    "dsrun train --zero 3 --model Qwen/Qwen3-0.6B --train-file chats.jsonl --lora 16",
    "dsrun train --help",
)


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
        rows.insert(3, ("batch", plan.batch.sentence(plan.world.rank_name)))
        if packing := batching.sentence(plan.world.ranks_named):
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
    ranks = plan.world.ranks_named
    stage = stage_of(plan.deepspeed)
    if "train" not in plan.phases and stage < 3:
        return ranks
    zero = f"ZeRO-{stage}" if plan.deepspeed is not None else "plain DDP (ZeRO 0)"
    offload = plan.recipe.spec.offload
    place = f", {'optimizer ' if offload == OPTIMIZER_ONLY else ''}offloaded to {offloaded_to(offload)}"
    return f"{zero}{'' if offload == 'none' else place} on {ranks}"


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
