"""From the recipe to transformers' Seq2SeqTrainingArguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import Seq2SeqTrainingArguments

from dsrun.errors import MissingError, UsageError, did_you_mean
from dsrun.recipe.flags import FIXED
from dsrun.recipe.trackers import trackers
from dsrun.system.host import cores, shm_free
from dsrun.train.loop.metrics import ROUGE_TYPES
from dsrun.train.plan import Plan
from dsrun.train.world import World

LOSS_METRICS = ("loss", "perplexity")
TEXT_METRICS = ("bleu", "chrf", *ROUGE_TYPES, "exact_match")

MOST_LOADER_WORKERS = 4
NEVER = 10**9

# A loader worker passes batches through /dev/shm; Docker's default of 64 MiB is filled by two long batches.
SMALLEST_SHM = 256 * 2**20


def training_arguments(plan: Plan, *, run: Path, has_validation: bool) -> Any:
    """The Trainer's arguments: what dsrun decides, over what the user gave, over dsrun's defaults."""
    recipe, world = plan.recipe, plan.world
    given = {name: value for name, value in recipe.hf.items() if name != "deepspeed"}
    spec = recipe.spec
    values: dict[str, Any] = _defaults(plan, run, has_validation)
    values |= _stopping(spec.early_stopping, given)
    values |= given
    values |= _saving(spec.save_every)
    values |= {
        "output_dir": str(run),
        "per_device_train_batch_size": plan.batch.micro_batch,
        "gradient_accumulation_steps": plan.batch.accumulation,
        "bf16": plan.precision == "bf16",
        "fp16": plan.precision == "fp16",
        "use_cpu": world.device == "cpu",
        "deepspeed": plan.deepspeed,
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "label_names": ["labels"],
        "report_to": trackers(recipe) or "none",
        "do_train": "train" in plan.phases,
    }
    if world.device == "cpu" and plan.deepspeed is None:
        values["ddp_backend"] = "gloo"
    if values.get("parallelism_config"):
        raise UsageError(
            "--parallelism_config: dsrun train is data parallel; it splits neither sequences nor tensors",
            fix="leave it out; --zero 3 shards a model over all GPUs",
        )
    if values.get("train_sampling_strategy") == "batch_rebalance":
        raise UsageError(
            "--train_sampling_strategy batch_rebalance would change which samples form a global batch",
            fix="use group_by_length, which saves padding too",
        )
    if spec.num_beams:
        values["generation_num_beams"] = spec.num_beams
    if values.get("auto_find_batch_size"):
        raise UsageError(
            "--auto-find-batch-size changes the global batch behind your back",
            fix="use --micro-batch-size auto, which keeps it",
        )
    _check_metric(values)
    # Set afterwards: the Trainer would insist on saving at the very steps that it evaluates at, which a trainer that
    # saves each new best does not need.
    load_best = values.pop("load_best_model_at_end", False)
    try:
        arguments = Seq2SeqTrainingArguments(**values)
    except (ValueError, TypeError) as error:
        raise UsageError(f"training arguments: {str(error).splitlines()[0]}") from error
    except ImportError as error:
        raise MissingError(str(error).strip().splitlines()[0]) from error
    arguments.load_best_model_at_end = load_best
    return arguments


def _saving(every: str | None) -> dict[str, Any]:
    """What --save-every asks of the Trainer; `auto` saves by the clock, and leaves the last save to the Trainer."""
    if every is None:
        return {}
    return {"save_strategy": "steps", "save_steps": NEVER if every == "auto" else int(every)}


def _defaults(plan: Plan, run: Path, has_validation: bool) -> dict[str, Any]:
    workers = loader_workers(plan.world)
    values: dict[str, Any] = {
        **FIXED,
        "run_name": run.name,
        "per_device_eval_batch_size": max(8, plan.batch.micro_batch),
        "predict_with_generate": plan.task == "seq2seq",
        "do_eval": has_validation,
        "dataloader_num_workers": workers,
        "dataloader_persistent_workers": workers > 0,
    }
    if plan.world.device == "cuda":
        import torch

        values["tf32"] = torch.cuda.get_device_capability()[0] >= 8
        values["use_liger_kernel"] = _liger_installed()
    return values


def loader_workers(world: World) -> int:
    """Loader processes per rank: half its share of the cores, none on a CPU run, where the model needs them all."""
    if world.device == "cpu":
        return 0
    room = shm_free()
    if room is not None and room < SMALLEST_SHM:
        return 0
    return min(MOST_LOADER_WORKERS, cores() // world.local_size // 2)


def _stopping(patience: int | None, given: dict[str, Any]) -> dict[str, Any]:
    """What early stopping and keeping the best checkpoint need the Trainer to do."""
    metric = str(given.get("metric_for_best_model") or "loss")
    # The Trainer's own guess takes everything that does not end in "loss" for the better the larger.
    better = {"greater_is_better": not metric.endswith(("loss", "perplexity"))}
    best_alone = given.get("save_strategy") == "best"
    load_best = patience is not None or bool(given.get("load_best_model_at_end"))
    if not load_best and not best_alone:
        return better if given.get("metric_for_best_model") else {}
    strategy = given.get("eval_strategy") or (not best_alone and given.get("save_strategy")) or "epoch"
    for flag in ("eval_strategy", "save_strategy"):
        if given.get(flag) == "no":
            raise UsageError(
                f"--{flag} no: early stopping and the best checkpoint need evaluations and checkpoints",
                fix=f"use --{flag} epoch, or steps",
            )
    return {
        "load_best_model_at_end": load_best,
        "metric_for_best_model": metric,
        **better,
        "eval_strategy": strategy,
        "save_strategy": "best" if best_alone else strategy,
        **({"save_steps": given["eval_steps"]} if strategy == "steps" and "eval_steps" in given else {}),
    }


def _check_metric(values: dict[str, Any]) -> None:
    """Refuse a metric that no evaluation yields; the Trainer finds out after the first evaluation, hours later."""
    metric = values.get("metric_for_best_model")
    known = LOSS_METRICS + (TEXT_METRICS if values["predict_with_generate"] else ())
    if metric is None or str(metric).removeprefix("eval_") in known:
        return
    raise UsageError(
        f"--metric-for-best-model {metric}: evaluation yields {', '.join(known)}",
        fix=did_you_mean(str(metric).removeprefix("eval_"), known, f"use {known[0]}"),
    )


def _liger_installed() -> bool:
    from importlib.util import find_spec

    return find_spec("liger_kernel") is not None
