"""The end of a run: the final model, its evaluation and its card; or a stop on request, to go on from a checkpoint."""

import json
import os
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from dsrun.demo.build_demo import DEMO_NAMES
from dsrun.runs.heartbeat import first_request
from dsrun.system.files import replacing
from dsrun.system.terminal.display import command_text, counted
from dsrun.train.base.console import Console, duration, number, shortened
from dsrun.train.base.distributed import all_gather_object
from dsrun.train.base.rank_context import is_supervised, record_interruption
from dsrun.train.base.refusals import notice_of, notices
from dsrun.train.card.write_card import CardFacts, write_cards
from dsrun.train.export.final import completed, save_final
from dsrun.train.loop.build_trainer import PreparedRun, unquantized_base
from dsrun.train.loop.recording import format_metrics
from dsrun.train.loop.trainer import RunTrainer
from dsrun.train.model.load import parameter_count

SHOWN_EXAMPLES = 5


def save_model(run: PreparedRun, trainer: RunTrainer) -> None:
    """Write the final model, once its weights are known to be finite."""
    if trainer.already_finished:
        state, arguments = trainer.state, trainer.args
        key = "all_steps" if arguments.max_steps > 0 else "all_epochs"
        key = "stopped_early" if state.global_step < state.max_steps else key
        run.console.notice(notice_of(f"finished.{key}", step=state.global_step, arguments=arguments))
    run.context.heart.enter("exporting")
    trainer.nan_guard.check_weights(trainer.model, trainer.state.global_step)
    run.console.print("saving the model")
    spec, tokenizer = run.plan.recipe.spec, trainer.processing_class
    base = partial(unquantized_base, run.plan, tokenizer) if spec.quantization else None
    # What it is a part of, where its files hold more than a text model.
    whole: Any = None if spec.text_only else getattr(trainer.model, "whole", None)
    more = {"complete": partial(completed, whole, notify=run.console.notice, beat=run.context.heart.beat)}
    save_final(trainer, run.folder.model, run.plan.task, lora=bool(spec.lora), base=base, **more if whole else {})


SplitMetrics = dict[str, dict[str, float]]
"""The final metrics by split, without prefix."""


def evaluate_and_predict(run: PreparedRun, trainer: RunTrainer) -> tuple[SplitMetrics, list[Path]]:
    """The final evaluation and, with --do-predict, the test split: metrics, and the files of texts, which rank 0 alone
    writes. Raises EvaluationLeftError where the ranks were asked to stop in it."""
    console, plan, data = run.console, run.plan, run.data
    found: SplitMetrics = {}
    predictions: list[Path] = []
    for split, rows, prefix in (("validation", data.validation, "eval"), ("test", data.test, "test")):
        if split not in plan.phases or rows is None:
            continue
        metrics = _already_known(trainer, split) or trainer.evaluate(rows, metric_key_prefix=prefix)
        found[split] = {name.removeprefix(f"{prefix}_"): value for name, value in metrics.items()}
        console.print(f"{split}  {format_metrics(metrics, prefix + '_', trainer.plugin_metrics)}")
        if (examples := trainer.last_examples) and plan.world.is_main:
            file = run.folder.path / f"predictions-{split}.jsonl"
            with replacing(file) as new, new.open("w", encoding="utf-8") as out:
                out.writelines(json.dumps(asdict(each), ensure_ascii=False) + "\n" for each in examples)
            predictions.append(file)
            _show(console, examples)
    return found, predictions


def _already_known(trainer: RunTrainer, split: str) -> dict[str, float] | None:
    """The metrics of the last evaluation in training, where it saw the very model that is now final."""
    if split != "validation" or trainer.last_metrics is None or trainer.args.load_best_model_at_end:
        return None
    step, metrics = trainer.last_metrics
    return metrics if step == trainer.state.global_step else None


def _show(console: Console, examples: list[Any]) -> None:
    console.print("")
    # Spread over the data, which is often sorted by something.
    for example in examples[:: max(1, len(examples) // SHOWN_EXAMPLES)][:SHOWN_EXAMPLES]:
        right = example.prediction.strip() == example.reference.strip()
        reference = "" if right else f"   (reference: {shortened(example.reference)})"
        console.print(f"  {shortened(example.source)}")
        console.print(f"    -> {shortened(example.prediction)}{reference}")


def write_up(
    run: PreparedRun, trainer: RunTrainer, metrics: SplitMetrics, predictions: list[Path], *, seconds: float
) -> None:
    """Write the model's card and the run's last records, and print the summary; `seconds` were spent in training."""
    run.context.heart.enter("ending")
    run.context.stopping.conclude()
    if "train" in run.plan.phases and run.plan.world.is_main:
        whole = None if run.plan.recipe.spec.text_only else getattr(trainer.model, "whole", None)
        facts = CardFacts(
            plan=run.plan,
            data=run.data,
            state=trainer.state,
            metrics=metrics,
            tokenizer=trainer.processing_class,
            parameters=parameter_count(trainer.model),
            trainable=parameter_count(trainer.model, trainable=True),
            best=_best_checkpoint(trainer),
            name=run.folder.path.resolve().name,
            repository=run.plan.recipe.hf.get("hub_model_id"),
            loader="AutoModelForImageTextToText" if whole else None,
        )
        write_cards(run.folder, facts, notify=run.console.notice)
    # The last event, and FINISHED, by which a scheduler knows that the job is done: after everything else.
    run.records.end(trainer.state.global_step)
    run.context.heart.enter("leaving")  # what computes from here on without a beat hangs
    _print_summary(run, trainer, predictions, seconds)


def _print_summary(run: PreparedRun, trainer: RunTrainer, predictions: list[Path], seconds: float) -> None:
    console, plan, folder = run.console, run.plan, run.folder
    # A supervisor prints the goodput itself, of all attempts.
    goodput = None if is_supervised(os.environ) else run.records.goodput()
    state = trainer.state
    rows = []
    if "train" in plan.phases:
        early = f" of {state.max_steps:,}, stopped early" if state.global_step < state.max_steps else ""
        when = ", already finished" if trainer.already_finished else f" in {duration(seconds)}"
        rows.append(("trained", f"{counted(state.global_step, 'step')}{early}{when}"))
    if best := _best_checkpoint(trainer):
        rows.append(("best", best))
    rows += [("adapter", str(folder.adapter))] if folder.adapter.is_dir() else []
    rows += [("model", str(folder.model))] if "train" in plan.phases else []
    rows += [("predictions", str(file)) for file in predictions]
    rows += [("time", goodput)] if goodput and "train" in plan.phases else []
    console.print("")
    console.rows(rows)
    if plan.title in DEMO_NAMES:
        console.print("")
        console.print("next, a real model on the demo's data or on yours:")
        for line in notices("next").values():
            console.print(line, fit=command_text)


def leave(run: PreparedRun, step: int, *, is_saved: bool) -> None:
    """Print and record that the run was asked to stop, and from which checkpoint it can go on. A collective."""
    path = run.folder.checkpoint(step)
    # The ranks may have been asked by different signals, or by one at different times: all name the first.
    request = first_request(all_gather_object(run.context.stopping.request))
    run.console.notice(f"stopped by {request}: {f'saved {path.name}' if is_saved else 'left the evaluation'}")
    if not request.regroups:
        run.records.interrupted(step, request)
    if run.plan.world.is_main:
        record_interruption(step, path.name if is_saved else None)


def _best_checkpoint(trainer: RunTrainer) -> str | None:
    """ "bleu 31.2 at step 4000"; None where the run did not look for the best."""
    state = trainer.state
    if state.best_metric is None:
        return None
    name = str(trainer.args.metric_for_best_model).removeprefix("eval_")
    return f"{name} {number(float(state.best_metric))} at step {state.best_global_step}"
