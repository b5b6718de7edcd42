"""A training run from recipe to finished model, on one worker. All ranks go through the same steps."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, set_seed

from dsrun.recipe.resolve import Recipe
from dsrun.runs.folder import RunFolder
from dsrun.system.host import disk_free
from dsrun.train import engine, report
from dsrun.train import model as models
from dsrun.train import world as worlds
from dsrun.train.arguments import training_arguments
from dsrun.train.batches import Split
from dsrun.train.callbacks import LogLastStep, Profiler, ProveEngine, Recorder, SaveAndLeave, StopEarly
from dsrun.train.console import Console
from dsrun.train.data.prepare import PreparedData
from dsrun.train.plan import Plan, data_request, decide_plan, prepare_and_say
from dsrun.train.records import RunRecords
from dsrun.train.resume import find_checkpoint
from dsrun.train.saving import check_room, save_final
from dsrun.train.stopping import Stopping, stopping_from
from dsrun.train.trainer import RunTrainer
from dsrun.train.world import World

DEFAULT_LOGGING_STEPS = 10


def run(
    recipe: Recipe,
    title: str,
    world: World,
    folder: RunFolder,
    console: Console,
    *,
    stopping: Stopping | None = None,
) -> None:
    """Train, evaluate and save as the recipe says; `title` is the model's name as the user knows it.

    Returns early, with a checkpoint and without a model, when `stopping` says so.
    """
    plan = decide_plan(recipe, title, world, say=console.notice)
    tokenizer = models.load_tokenizer(recipe.spec)
    # Before any collective, which would time out while the others wait for a large dataset.
    request = data_request(recipe, plan.config, plan.task, len(tokenizer), plan.phases)
    data = prepare_and_say(request, tokenizer, console)
    if plan.deepspeed is not None:
        engine.prepare_ops(plan.deepspeed, world, say=console.notice)
    worlds.join(world, deepspeed=plan.deepspeed is not None)
    records = RunRecords(folder, main=world.is_main)
    _Run(plan, data, folder, console, records, stopping or stopping_from({})).carry_out(tokenizer)


@dataclass(frozen=True)
class _Run:
    plan: Plan
    data: PreparedData
    folder: RunFolder
    console: Console
    records: RunRecords
    stopping: Stopping

    def carry_out(self, tokenizer: Any) -> None:
        trainer = self._trainer(tokenizer)
        try:
            self._train_and_evaluate(trainer)
        except BaseException as error:
            self.records.failure(error)
            raise

    def _trainer(self, tokenizer: Any) -> RunTrainer:
        """The Trainer around the model. Building its arguments registers DeepSpeed's configuration, without which
        a ZeRO-3 model would be built whole on every rank."""
        plan = self.plan
        arguments = training_arguments(
            plan, run=self.folder.path, has_validation=self.data.validation is not None
        )
        if "logging_steps" not in plan.recipe.hf:
            arguments.logging_steps = logging_steps(arguments, self.data.train, plan.batch.global_batch)
        set_seed(arguments.seed)
        model = self._model(tokenizer)
        if plan.task == "seq2seq" and not arguments.generation_max_length:
            arguments.generation_max_length = self.data.collator.max_target_length
        self.data.collator.model = model
        trainer = RunTrainer(
            model=model,
            args=arguments,
            processing_class=tokenizer,
            data_collator=self.data.collator,
            train_dataset=self.data.train,
            eval_dataset=self.data.validation,
            callbacks=_stoppers(plan.recipe.spec.early_stopping),
            split=Split(plan.batch.micro_batch, plan.world.rank, plan.world.size, plan.batch.accumulation),
            ds_config=plan.deepspeed,
            on_checkpoint=self.records.checkpoint,
            eval_progress=self.console.task("evaluating").update,
            stopping=self.stopping,
        )
        trainer.add_callback(SaveAndLeave(trainer, self.stopping))
        trainer.remove_callback(PrinterCallback)
        return trainer

    def _model(self, tokenizer: Any) -> Any:
        spec, task = self.plan.recipe.spec, self.plan.task
        model = models.build(spec, self.plan.config, task)
        grown = models.fit_embeddings(model, tokenizer)
        if grown:
            self.console.notice(grown)
        if spec.resize_position_embeddings:
            stretched = models.stretch_positions(model, spec.max_source_length or spec.max_length)
            if stretched:
                self.console.notice(stretched)
        if task == "seq2seq":
            models.set_languages(model, tokenizer, spec)
        return models.add_lora(model, spec, task) if spec.lora else model

    def _train_and_evaluate(self, trainer: RunTrainer) -> None:
        plan = self.plan
        parameters = models.parameter_count(trainer.model)
        trainable = models.parameter_count(trainer.model, trainable=True)
        report.header(self.console, plan, self.data, self.folder, parameters=parameters, trainable=trainable)
        training = "train" in plan.phases
        checkpoint = self._start_from(trainer, parameters, trainable) if training else None
        self.records.start(plan, parameters=parameters, resumed_from=checkpoint)
        self._add_callbacks(trainer, parameters)
        began = time.monotonic()
        seconds = 0.0
        if training:
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
            seconds = time.monotonic() - began
            if trainer.interrupted:
                self.records.interrupted(trainer.state.global_step)
                self.console.notice(f"told to stop: saved checkpoint-{trainer.state.global_step} and left")
                return
            if trainer.already_finished:
                self.console.notice(report.already_finished(trainer.state))
            self.console.say("saving the model")
            save_final(trainer, self.folder.model, plan.task, lora=bool(plan.recipe.spec.lora))
        else:
            trainer.prepare_for_evaluation()
        predictions = report.evaluate_and_predict(self.console, plan, trainer, self.data, self.folder)
        self.records.end(trainer.state.global_step)
        report.summary(self.console, plan, trainer, self.folder, predictions, seconds=seconds)

    def _start_from(self, trainer: RunTrainer, parameters: int, trainable: int) -> Path | None:
        """The checkpoint to go on from, once it is sure that the disk takes the next one."""
        check_room(
            disk_free(self.folder.path),
            parameters=parameters,
            trainable=trainable,
            weight_bytes=4 if self.plan.precision == "fp32" else 2,
            checkpoints=trainer.args.save_strategy != "no",
            where=self.folder.path,
        )
        return find_checkpoint(
            self.plan.recipe.spec.resume,
            self.folder,
            world_size=self.plan.world.size,
            stage=engine.stage_of(self.plan.deepspeed),
            model_type=self.plan.config.model_type,
            say=self.console.notice,
        )

    def _add_callbacks(self, trainer: RunTrainer, parameters: int) -> None:
        plan = self.plan
        trainer.add_callback(ProveEngine(trainer))
        trainer.add_callback(LogLastStep())
        if plan.world.is_main:
            peak = report.peak_flops(plan.precision) if plan.world.device == "cuda" else None
            write = self.records.metric
            trainer.add_callback(
                Recorder(trainer, self.console, write, parameters=parameters, peak_flops=peak)
            )
        steps = plan.recipe.spec.profile
        if steps:
            trainer.add_callback(
                Profiler(steps, self.folder.path / "profile", self.console, rank=plan.world.rank)
            )


def logging_steps(arguments: Any, train: Any, global_batch: int) -> int:
    """Steps between log lines: ten, fewer in a run so short that ten would show nothing of its course."""
    total = arguments.max_steps
    if total <= 0 and hasattr(train, "__len__"):
        total = arguments.num_train_epochs * len(train) / global_batch
    return DEFAULT_LOGGING_STEPS if total <= 0 else max(1, min(DEFAULT_LOGGING_STEPS, int(total // 10)))


def _stoppers(patience: int | None) -> list[Any]:
    return [] if patience is None else [StopEarly(early_stopping_patience=patience)]
