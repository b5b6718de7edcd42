"""A training run from recipe to finished model, on one worker. All ranks go through the same steps."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import EarlyStoppingCallback, PrinterCallback, set_seed

from dsrun.errors import UsageError
from dsrun.recipe.batch import BatchPlan, batch_plan
from dsrun.recipe.phases import phases
from dsrun.recipe.resolve import Recipe
from dsrun.runs.folder import RunFolder
from dsrun.system.host import cpu_bf16, disk_free
from dsrun.train import engine, model as models, report, world as worlds
from dsrun.train.arguments import training_arguments
from dsrun.train.batches import Split
from dsrun.train.callbacks import LogLastStep, Profiler, ProveEngine, Recorder
from dsrun.train.console import Console
from dsrun.train.data.prepare import DataRequest, PreparedData, prepare_data
from dsrun.train.precision import Precision, decide
from dsrun.train.records import RunRecords
from dsrun.train.resume import find_checkpoint
from dsrun.train.saving import check_room, save_final
from dsrun.train.trainer import RunTrainer
from dsrun.train.world import World

DEFAULT_MICRO_BATCH = 8
DEFAULT_LOGGING_STEPS = 10


@dataclass(frozen=True)
class Plan:
    """What was decided before anything large was loaded."""

    recipe: Recipe
    title: str
    world: World
    config: Any
    task: models.Task
    batch: BatchPlan
    precision: Precision
    deepspeed: dict[str, Any] | None
    phases: frozenset[str]


def decide_plan(recipe: Recipe, title: str, world: World) -> Plan:
    """Everything that follows from flags, hardware and the model's config alone."""
    spec = recipe.spec
    config = models.load_config(spec)
    deepspeed = engine.configuration(spec, recipe.hf, engine.hidden_size(config))
    precision = decide(
        recipe.hf,
        model_type=config.model_type,
        bf16_supported=worlds.bf16_supported(world.device, cpu_bf16()),
        device=world.device,
        deepspeed=deepspeed,
        force=spec.force,
    )
    batch = batch_plan(
        global_batch_size=spec.global_batch_size,
        micro_batch_size=spec.micro_batch_size or recipe.hf.get("per_device_train_batch_size"),
        accumulation=recipe.hf.get("gradient_accumulation_steps"),
        world_size=world.size,
        default_micro=DEFAULT_MICRO_BATCH,
    )
    task = models.decide_task(config, spec.task, spec.model or spec.model_type)
    return Plan(recipe, title, world, config, task, batch, precision, deepspeed, phases(recipe))


def run(recipe: Recipe, title: str, world: World, folder: RunFolder, console: Console) -> None:
    """Train, evaluate and save as the recipe says."""
    plan = decide_plan(recipe, title, world)
    tokenizer = models.load_tokenizer(recipe.spec)
    # Before any collective, which would time out while the others wait for a large dataset.
    request = data_request(recipe, plan.config, plan.task, len(tokenizer), plan.phases)
    data = prepare_and_say(request, tokenizer, console)
    records = RunRecords(folder, main=world.is_main)
    if plan.deepspeed is not None:
        engine.prepare_ops(plan.deepspeed, world, say=console.notice)
    worlds.join(world, deepspeed=plan.deepspeed is not None)
    trainer = _build(plan, tokenizer, data, folder, console, records)
    try:
        _carry_out(plan, trainer, data, folder, console, records)
    except BaseException as error:
        records.failure(error)
        raise


def prepare_and_say(request: DataRequest, tokenizer: Any, console: Console) -> PreparedData:
    """Load and tokenise the data, telling the user what is worth knowing about it."""
    task = console.task("tokenising")
    data = prepare_data(
        request, tokenizer, say=console.notice, progress=lambda _split, done, total: task.update(done, total)
    )
    for notice in data.notices:
        console.notice(notice)
    for split, cut in data.truncation.items():
        if cut.cut:
            console.notice(f"{split}: {cut.sentence()}")
    return data


def data_request(recipe: Recipe, config: Any, task: models.Task, tokens: int, wanted: frozenset[str]) -> DataRequest:
    """What the data room needs to know; `dsrun prepare` asks with the same words, so both find the same cache."""
    text = config.get_text_config()
    return DataRequest(
        spec=recipe.spec,
        task=task,
        model_type=config.model_type,
        max_positions=getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None),
        vocab_size=max(text.vocab_size, tokens),
        seed=recipe.hf.get("seed", 42),
        splits=wanted,
        predict_with_generate=recipe.hf.get("predict_with_generate", task == "seq2seq"),
    )


def _build(
    plan: Plan, tokenizer: Any, data: PreparedData, folder: RunFolder, console: Console, records: RunRecords
) -> RunTrainer:
    """The Trainer around the model; DeepSpeed's configuration is registered before the model is built."""
    spec = plan.recipe.spec
    arguments = training_arguments(
        plan.recipe,
        world=plan.world,
        plan=plan.batch,
        precision=plan.precision,
        deepspeed=plan.deepspeed,
        task=plan.task,
        run=folder.path,
        has_validation=data.validation is not None,
    )
    if "logging_steps" not in plan.recipe.hf:
        arguments.logging_steps = logging_steps(arguments, data.train, plan.batch.global_batch)
    set_seed(arguments.seed)
    model = models.build(spec, plan.config, plan.task)
    grown = models.fit_embeddings(model, tokenizer)
    if grown:
        console.notice(grown)
    if plan.task == "seq2seq":
        models.set_languages(model, tokenizer, spec)
        arguments.generation_max_length = arguments.generation_max_length or data.collator.max_target_length
    if spec.lora:
        model = models.add_lora(model, spec, plan.task)
    data.collator.model = model
    evaluating = console.task("evaluating")
    trainer = RunTrainer(
        model=model,
        args=arguments,
        processing_class=tokenizer,
        data_collator=data.collator,
        train_dataset=data.train,
        eval_dataset=data.validation,
        callbacks=_stoppers(spec.early_stopping),
        split=Split(plan.batch.micro_batch, plan.world.rank, plan.world.size, plan.batch.accumulation),
        ds_config=plan.deepspeed,
        on_checkpoint=records.checkpoint,
        eval_progress=evaluating.update,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def logging_steps(arguments: Any, train: Any, global_batch: int) -> int:
    """Steps between log lines: ten, fewer in a run so short that ten would show nothing of its course."""
    total = arguments.max_steps
    if total <= 0 and hasattr(train, "__len__"):
        total = arguments.num_train_epochs * len(train) / global_batch
    return DEFAULT_LOGGING_STEPS if total <= 0 else max(1, min(DEFAULT_LOGGING_STEPS, int(total // 10)))


def _stoppers(patience: int | None) -> list[Any]:
    return [] if patience is None else [EarlyStoppingCallback(early_stopping_patience=patience)]


def _carry_out(
    plan: Plan, trainer: RunTrainer, data: PreparedData, folder: RunFolder, console: Console, records: RunRecords
) -> None:
    parameters = models.parameter_count(trainer.model)
    trainable = models.parameter_count(trainer.model, trainable=True)
    report.header(console, plan, data, folder, parameters=parameters, trainable=trainable)
    checkpoint = None
    if "train" in plan.phases:
        checkpoint = find_checkpoint(
            plan.recipe.spec.resume, folder, world_size=plan.world.size, say=console.notice)
        check_room(
            disk_free(folder.path),
            parameters=parameters,
            trainable=trainable,
            weight_bytes=4 if plan.precision == "fp32" else 2,
            checkpoints=trainer.args.save_strategy != "no",
            where=folder.path,
        )
    records.start(plan, parameters=parameters, resumed_from=checkpoint)
    _add_callbacks(plan, trainer, folder, console, records, parameters)
    began = time.monotonic()
    if "train" in plan.phases:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        console.say("saving the model")
        save_final(trainer, folder.model, plan.task, lora=bool(plan.recipe.spec.lora))
    else:
        trainer.prepare_for_evaluation()
    report.evaluate_and_predict(console, plan, trainer, data, folder)
    records.end(trainer.state.global_step)
    report.summary(console, plan, trainer, folder, seconds=time.monotonic() - began)


def _add_callbacks(
    plan: Plan, trainer: RunTrainer, folder: RunFolder, console: Console, records: RunRecords, parameters: int
) -> None:
    trainer.add_callback(ProveEngine(trainer))
    trainer.add_callback(LogLastStep())
    if plan.world.is_main:
        peak = report.peak_flops(plan.precision) if plan.world.device == "cuda" else None
        trainer.add_callback(Recorder(trainer, console, records.metric, parameters=parameters, peak_flops=peak))
    if plan.recipe.spec.profile:
        profile = Profiler(plan.recipe.spec.profile, folder.path / "profile", console, rank=plan.world.rank)
        trainer.add_callback(profile)
