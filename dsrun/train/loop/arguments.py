"""From the recipe to transformers' Seq2SeqTrainingArguments, checked before anything large is loaded."""

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import torch
from transformers import Seq2SeqTrainingArguments, Trainer, get_scheduler
from transformers.utils import is_liger_kernel_available

from dsrun.datafiles import SubjectNames, evaluate, toml_beside
from dsrun.errors import MissingError, UsageError, did_you_mean, one_line
from dsrun.recipe.flags import ENGINE_OPTIMIZERS, FIXED
from dsrun.recipe.trackers import trackers
from dsrun.system.host import cores, shm_free
from dsrun.system.terminal.display import NotePrinter
from dsrun.train.base import speed
from dsrun.train.base.distributed import DistributedWorld
from dsrun.train.base.plan import TrainingPlan
from dsrun.train.base.refusals import refusal, refuse
from dsrun.train.data.mixture import sets_of
from dsrun.train.loop.evaluation import ROUGE_TYPES
from dsrun.train.loss import distill, dpo
from dsrun.train.model.load import HTTP_ERROR, is_unreachable
from dsrun.zero.ops import stage_of

LOSS_METRICS = ("loss", "perplexity")
TEXT_METRICS = ("bleu", "chrf", *ROUGE_TYPES, "exact_match")

MOST_LOADER_WORKERS = 4
NEVER = 10**9

# A loader worker passes batches through /dev/shm; Docker's default of 64 MiB is filled by two long batches.
SMALLEST_SHM = 256 * 2**20

# Where the length of the run follows from the data; the schedules look at it only to be longer than their parts.
SOME_STEPS = 10**6


def training_arguments(plan: TrainingPlan, *, run: Path, validation: Any) -> Any:
    """The Trainer's arguments: what dsrun decides, over what the user gave, over dsrun's defaults. `validation` are the
    rows to evaluate on, None without any."""
    recipe = plan.recipe
    given = {name: value for name, value in recipe.hf.items() if name != "deepspeed"}
    if given.get("optim") in ENGINE_OPTIMIZERS:
        del given["optim"]
    spec = recipe.spec
    facts = speed.facts_of(plan)
    os.environ.update(speed.environment(facts))
    names = {"run": run, "has_validation": validation is not None, "workers": loader_workers(plan.world)}
    values: dict[str, Any] = {**FIXED, **_evaluated("defaults", plan, **names), **speed.values(facts)}
    values |= _stopping(spec.early_stopping, given)
    values |= given
    if spec.save_every is not None:
        # `auto` saves by the clock, and leaves the last save to the Trainer, which saves at the last step under the
        # strategy `steps` alone (DefaultFlowCallback).
        values |= {"save_strategy": "steps", "save_steps": NEVER if spec.save_every == "auto" else int(spec.save_every)}
    values |= _evaluated("decided", plan, folder=str(run), trackers=trackers(recipe))
    if plan.world.device == "cpu" and plan.deepspeed is None:
        # Without it accelerate takes MPI on CPUs where torch was built with it (state.py).
        values["ddp_backend"] = "gloo"
    if spec.num_beams:
        values["generation_num_beams"] = spec.num_beams
    of_loss = {"dpo": dpo.METRICS, "distill": distill.METRICS}.get(spec.task, ("perplexity",))
    of_plugin = plan.plugin.plugin.metric_names if plan.plugin else ()
    _check_metric(values, of_loss, of_plugin, sets_of(validation))
    # Set afterwards: the Trainer would insist on saving at the very steps that it evaluates at, which a trainer that
    # saves each new best does not need.
    load_best = values.pop("load_best_model_at_end", False)
    with as_usage_errors("training arguments"):
        arguments = Seq2SeqTrainingArguments(**values)
    arguments.load_best_model_at_end = load_best
    return arguments


def _evaluated(table: str, plan: TrainingPlan, **names: Any) -> dict[str, Any]:
    known = SubjectNames(plan, {}, **names)
    return {name: evaluate(expression, known) for name, expression in toml_beside(__file__)[table].items()}


def loader_workers(world: DistributedWorld) -> int:
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
    return {
        "load_best_model_at_end": load_best,
        "metric_for_best_model": metric,
        **better,
        "eval_strategy": strategy,
        "save_strategy": "best" if best_alone else strategy,
        **({"save_steps": given["eval_steps"]} if strategy == "steps" and "eval_steps" in given else {}),
    }


def _check_metric(
    values: dict[str, Any], of_loss: Sequence[str], of_plugin: Sequence[str], sets: Collection[str]
) -> None:
    """Refuse a metric that no evaluation on these sets yields; the Trainer finds out after the first, hours later.
    `of_loss` are those that come with the loss."""
    metric = values.get("metric_for_best_model")
    if taken := {*LOSS_METRICS, *TEXT_METRICS}.intersection(of_plugin):
        raise UsageError(f"metric_names of --plugin: {min(taken)} is a metric of dsrun's own", fix="rename it")
    known = ("loss", *of_loss) + ((*TEXT_METRICS, *of_plugin) if values["predict_with_generate"] else ())
    known += tuple(f"{name}_{each}" for name in sets if name for each in known)
    if metric is None or str(metric).removeprefix("eval_") in known:
        return
    fix = did_you_mean(str(metric).removeprefix("eval_"), known, f"use {known[0]}")
    raise UsageError(f"--metric-for-best-model {metric}: evaluation yields {', '.join(known)}", fix=fix)


def check_arguments(arguments: Any, model: Any, deepspeed: dict[str, Any] | None, *, notify: NotePrinter) -> None:
    """Try the optimizer, the schedule and the noise that were asked for; `deepspeed` may bring the first two itself.

    Raises UsageError, or MissingError where a package is not installed; `notify` gets what has no effect."""
    blocks = deepspeed or {}
    if deepspeed is not None:
        refuse("full_eval", arguments=arguments)
    if "optimizer" not in blocks:
        _try_optimizer(arguments, model, stage_of(deepspeed), notify)
    if "scheduler" not in blocks:
        _try_schedule(arguments)
    _try_noise(arguments, model)
    if arguments.use_liger_kernel and not is_liger_kernel_available():
        raise MissingError("--use_liger_kernel: liger-kernel is not installed", fix="pip install liger-kernel")


@contextmanager
def as_usage_errors(what: str) -> Iterator[None]:
    """Errors of the stock classes about what they are given, as errors of dsrun, which no restart can repair."""
    try:
        yield
    except (ImportError, ValueError, TypeError) as error:
        line = one_line(error)
        # Some raise ValueError for a package that is not installed.
        missing = isinstance(error, ImportError) or "install" in line.lower()
        raise (MissingError if missing else UsageError)(f"{what}: {line}") from error
    except (HTTP_ERROR, OSError) as error:
        line = one_line(error)
        if not (isinstance(error, HTTP_ERROR) or is_unreachable(error)):
            if isinstance(error, OSError) and error.errno is None:
                # transformers' own, about the content of a file (--generation_config); the system's have a number.
                raise UsageError(f"{what}: {line}") from error
            raise
        raise refusal("arguments.hub", what=what, line=line) from error


def _try_optimizer(arguments: Any, model: Any, stage: int, notify: NotePrinter) -> None:
    name = arguments.optim.value
    with as_usage_errors(f"--optim {name}"):
        kind, options = Trainer.get_optimizer_cls_and_kwargs(arguments, model)
    if stage and issubclass(kind, torch.optim.Adagrad):
        # DeepSpeedZeroOptimizer.initialize_optimizer_states makes a new one of a single group, and then looks for both.
        raise refusal("arguments.adagrad", name=name)
    if arguments.optim_args:
        plain = copy(arguments)
        plain.optim_args = None
        if Trainer.get_optimizer_cls_and_kwargs(plain, model) == (kind, options):
            notify(f"--optim-args {arguments.optim_args} has no effect on --optim {name}")


def _try_schedule(arguments: Any) -> None:
    kind = arguments.lr_scheduler_type
    steps = arguments.max_steps if arguments.max_steps > 0 else SOME_STEPS
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=arguments.learning_rate)
    with as_usage_errors(f"--lr-scheduler-type {kind.value}"):
        get_scheduler(kind, optimizer, arguments.get_warmup_steps(steps), steps, arguments.lr_scheduler_kwargs)


def _try_noise(arguments: Any, model: Any) -> None:
    """transformers.integrations.neftune hooks the model's own embedding; T5, BART and others have each stack look its
    tokens up in another module with the same weights, so that no noise would ever be added."""
    if arguments.neftune_noise_alpha is None or not model.config.is_encoder_decoder:
        return
    if model.get_encoder().get_input_embeddings() is not model.get_input_embeddings():
        raise refusal("arguments.noise", kind=model.config.model_type)
