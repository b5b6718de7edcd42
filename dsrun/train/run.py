"""A training run from recipe to finished model, on one worker. All ranks go through the same steps."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

from dsrun.recipe.recipe import Recipe, phases
from dsrun.runs.attempts import earlier_signatures, is_another, saved_global_batch
from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import read_manifest
from dsrun.runs.stop_request import first_request
from dsrun.system import variables
from dsrun.system.host import disk_free, versions
from dsrun.system.tested import TESTED, untested
from dsrun.train import distributed as worlds
from dsrun.train.card.facts import CardFacts
from dsrun.train.card.write import write_cards
from dsrun.train.checkpoint import elastic, plain
from dsrun.train.checkpoint.checkpointing import Saving
from dsrun.train.checkpoint.final import check_room, save_final
from dsrun.train.checkpoint.layout import Layout
from dsrun.train.checkpoint.resume import find_checkpoint
from dsrun.train.checkpoint.verify import checkpoint_facts
from dsrun.train.console import Console
from dsrun.train.data.request import PreparedData
from dsrun.train.distributed import World, all_gather_object, assert_same_on_all_ranks
from dsrun.train.given import NOTHING, Given
from dsrun.train.loop import engine
from dsrun.train.loop.build import TrainerBuilder, unquantized_base
from dsrun.train.loop.preemption import EvaluationLeftError
from dsrun.train.loop.setup import build_callbacks
from dsrun.train.loop.trainer import RunTrainer
from dsrun.train.model import load as models
from dsrun.train.packing.decide import batch_of_tokens, keep_grouping
from dsrun.train.plan import Plan, decide_plan, read_memory_fallback
from dsrun.train.plugin import load_plugin
from dsrun.train.prepare import data_request, prepare_and_report, show_samples
from dsrun.train.rank_context import RankContext, cause_of, is_supervised, record_interruption
from dsrun.train.records import (
    FinalResults,
    RunRecords,
    already_finished,
    best_checkpoint,
    evaluate_and_predict,
    header,
    parallel,
    step_of,
    summary,
)
from dsrun.train.sequence.degree import with_long_context
from dsrun.train.speed import compiles


def run(
    recipe: Recipe, title: str, world: World, folder: RunFolder, console: Console, *, context: RankContext | None = None
) -> None:
    """Train, evaluate and save as the recipe says; returns early, with a checkpoint, when `context.stopping` says
    so."""
    prepare_run(recipe, title, world, folder, console, context=context).run_all()


def prepare_run(
    recipe: Recipe,
    title: str,
    world: World,
    folder: RunFolder,
    console: Console,
    *,
    context: RankContext | None = None,
    given: Given = NOTHING,
) -> PreparedRun:
    """Decide everything, prepare the data, and join the process group. A script's own model and rows are `given`."""
    context = context or RankContext.unsupervised()
    context.heart.enter("loading")
    strange = untested(versions(TESTED))
    if strange and not is_another(os.environ):
        console.notice(strange)
    if recipe.spec.auto_micro_batch and not is_supervised(os.environ):
        console.notice("--micro-batch-size auto needs `dsrun train`, which starts again with less when memory runs out")
    recipe = with_long_context(recipe)
    saved_batch = _saved_batch(recipe, folder) if "train" in phases(recipe) else None
    plan = decide_plan(
        recipe,
        title,
        world,
        notify=console.notice,
        remedy=read_memory_fallback(folder.path, recipe),
        saved_batch=saved_batch,
        plugin=load_plugin(recipe.spec),
        given=given,
    )
    context.progress.micro_batch = plan.batch.micro_batch
    tokenizer = given.tokenizer or models.load_tokenizer(recipe.spec)
    # Before any collective, which would time out while the others wait for a large dataset.
    request = data_request(
        recipe,
        plan.config,
        plan.task,
        tokens=len(tokenizer),
        wanted=plan.phases,
        plugin=plan.plugin,
        sources=given.sources(),
    )
    context.heart.enter("tokenising")
    data = prepare_and_report(request, tokenizer, console, beat=context.heart.beat)
    if "train" in plan.phases and world.is_main and not is_another(os.environ):
        show_samples(data, tokenizer, console)
    context.heart.enter("loading")
    if recipe.spec.global_batch_tokens and "train" in plan.phases and plan.batch.global_batch != saved_batch:
        both = plan.task == "seq2seq"
        plan = replace(plan, batch=batch_of_tokens(plan.batch, recipe.spec.global_batch_tokens, data.train, both=both))
    if plan.deepspeed is not None:
        engine.prepare_ops(plan.deepspeed, world, notify=console.notice, training="train" in plan.phases)
    context.heart.join(world.group_timeout_s, compiles=compiles(recipe.hf, plan.deepspeed))
    worlds.init_process_group(world, deepspeed=plan.deepspeed is not None)
    records = RunRecords(folder, main=world.is_main)
    return PreparedRun(plan, tokenizer, data, folder, console, records, context)


def _saved_batch(recipe: Recipe, folder: RunFolder) -> int | None:
    """The global batch of the checkpoint to resume from: as node 0's supervisor has read it, else from the manifest."""
    known = os.environ.get(variables.SAVED_BATCH)
    if known is None:
        return saved_global_batch(folder, recipe.spec.resume, earlier_signatures(os.environ))
    return int(known) if known else None


@dataclass(frozen=True)
class PreparedRun:
    """A run on this worker before its model is built."""

    plan: Plan
    tokenizer: Any
    data: PreparedData
    folder: RunFolder
    console: Console
    records: RunRecords
    context: RankContext

    def run_all(self) -> None:
        with self.recorded():
            begun = self.begin()
            if begun.train():
                begun.finish()

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record an error inside."""
        try:
            yield
        except BaseException as error:
            # A supervisor knows which rank failed first, and what comes next.
            if not is_supervised(os.environ) and not self.context.stopping.stopped_before_training:
                self.records.failure(error, step=self.context.progress.step, cause=cause_of(error))
            raise

    def begin(self) -> BegunRun:
        """Find the checkpoint to go on from, and build the model and its Trainer."""
        facts = checkpoint_facts(self.plan, self.tokenizer, self.data)
        start = self._start(facts) if "train" in self.plan.phases else None
        plan = replace(self.plan, deepspeed=start.configure(self.plan.deepspeed)) if start else self.plan
        run = replace(self, plan=plan)
        trainer = run._trainer(start, facts)
        run._record_start(trainer, start)
        return BegunRun(run, trainer, start)

    def _start(self, facts: dict[str, Any]) -> elastic.Adapted | None:
        """The checkpoint to go on from, made fit for this number of ranks and this stage. Before the Trainer's
        arguments, as it may change DeepSpeed's configuration."""
        plan = self.plan
        checkpoint = find_checkpoint(
            plan.recipe.spec.resume,
            self.folder,
            facts=facts,
            trust=plan.recipe.spec.trust,
            force=plan.recipe.spec.force,
            notify=self.console.notice,
            beat=self.context.heart.beat,
            again=earlier_signatures(os.environ),
        )
        # It follows from files of the run folder, which each rank has read by itself.
        assert_same_on_all_ranks("batch", plan.batch.sentence("rank"))
        assert_same_on_all_ranks("plugin", facts["plugin"])
        if checkpoint is None:
            return None
        return elastic.adapt(
            checkpoint,
            replace(Layout.wanted(plan.world.size, plan.deepspeed), fp16=plan.precision == "fp16"),
            run=self.folder.path,
            notify=self.console.notice,
            beat=self.context.heart.beat,
            names=lambda: plain.trainer_order(plan, self.tokenizer),
        )

    def _trainer(self, start: elastic.Adapted | None, facts: dict[str, Any]) -> RunTrainer:
        saved = keep_grouping((read_manifest(start.source) or {"extra": {}})["extra"]) if start else None
        builder = TrainerBuilder(self.plan, self.data, self.folder, self.console, self.records, self.context, saved)
        trainer = builder.build(self.tokenizer)
        # Each rank has probed the model by itself; with different batches they would wait for each other for ever.
        assert_same_on_all_ranks(
            "batches",
            str((trainer.batching.grouping, trainer.batching.method)),
            fix="install the same packages and kernels on all nodes, or pass --packing off",
        )
        if saved and saved != trainer.batching.grouping:
            self.console.notice(
                f"samples form other batches ({trainer.batching.grouping.kind}) than before ({saved.kind}): "
                "in this epoch some may be repeated or left out"
            )
        spec, beat = self.plan.recipe.spec, self.context.heart.beat
        saving = Saving(
            run=self.folder,
            keep=spec.keep,
            background=spec.async_save,
            trust=spec.trust,
            facts=facts | {"grouping": asdict(trainer.batching.grouping)},
            beat=beat,
            notify=self.console.notice,
        )
        trainer.keep_checkpoints(saving)
        if start:
            self.context.progress.saved = step_of(start.source)
            trainer.add_callback(elastic.ElasticResumeCallback(trainer, start, run=self.folder.path))
        return trainer

    def _record_start(self, trainer: RunTrainer, start: elastic.Adapted | None) -> None:
        plan = self.plan
        parameters = models.parameter_count(trainer.model)
        trainable = models.parameter_count(trainer.model, trainable=True)
        batching = trainer.batching
        header(self.console, plan, self.data, self.folder, batching, parameters=parameters, trainable=trainable)
        if "train" in plan.phases:
            check_room(
                disk_free(self.folder.path),
                parameters=parameters,
                trainable=trainable,
                weight_bytes=4 if plan.precision == "fp32" else 2,
                checkpoints=trainer.args.save_strategy != "no",
                where=self.folder.path,
            )
        source = start.source if start else None
        gpus = all_gather_object(torch.cuda.get_device_name()) if plan.world.device == "cuda" else []
        self.records.start(plan, parameters=parameters, packing=batching.facts, gpus=gpus, resumed_from=source)
        build_callbacks(trainer, plan, self.folder, self.records, self.console)


@dataclass
class BegunRun:
    """A run with its Trainer: first `train`, then `finish`."""

    run: PreparedRun
    trainer: RunTrainer
    start: elastic.Adapted | None
    seconds: float = 0.0

    def train(self) -> bool:
        """Train, where the recipe says so; False if the run was asked to stop, and has saved a checkpoint."""
        trainer = self.trainer
        if "train" not in self.run.plan.phases:
            trainer.prepare_for_evaluation()
            self.run.context.stopping.begin()
            return True
        began = time.monotonic()
        trainer.train(resume_from_checkpoint=str(self.start.path) if self.start else None)
        self.seconds = time.monotonic() - began
        if trainer.interrupted:
            self._leave()
        return not trainer.interrupted

    def finish(self) -> bool:
        """Write the model and evaluate it; False if the run was asked to stop before it was done."""
        run, trainer = self.run, self.trainer
        training = "train" in run.plan.phases
        if training:
            self._export()
        # With nothing to go on from, leaving would lose the training.
        trainer.may_leave_evaluation = not training or self._is_saved()
        try:
            results = evaluate_and_predict(run.console, run.plan, trainer, run.data, run.folder)
        except EvaluationLeftError:
            self._leave()
            return False
        run.context.heart.enter("ending")
        if training and run.plan.world.is_main:
            write_cards(run.folder, self._card_facts(results), notify=run.console.notice)
        run.records.end(trainer.state.global_step)
        goodput = None if is_supervised(os.environ) else run.records.goodput()
        summary(run.console, run.plan, trainer, run.folder, results.predictions, seconds=self.seconds, goodput=goodput)
        return True

    def _card_facts(self, results: FinalResults) -> CardFacts:
        run, trainer = self.run, self.trainer
        return CardFacts(
            plan=run.plan,
            data=run.data,
            state=trainer.state,
            metrics=results.metrics,
            tokenizer=trainer.processing_class,
            parameters=models.parameter_count(trainer.model),
            trainable=models.parameter_count(trainer.model, trainable=True),
            parallel=parallel(run.plan),
            best=best_checkpoint(trainer),
            name=run.folder.path.resolve().name,
            repository=run.plan.recipe.hf.get("hub_model_id"),
        )

    def _export(self) -> None:
        run, trainer = self.run, self.trainer
        if trainer.already_finished:
            run.console.notice(already_finished(trainer.state))
        run.context.heart.enter("exporting")
        trainer.nan_guard.check_weights(trainer.model, trainer.state.global_step)
        run.console.print("saving the model")
        spec, tokenizer = run.plan.recipe.spec, trainer.processing_class
        base = partial(unquantized_base, run.plan, tokenizer) if spec.quantization else None
        save_final(trainer, run.folder.model, run.plan.task, lora=bool(spec.lora), base=base)

    def _leave(self) -> None:
        run, step = self.run, self.trainer.state.global_step
        path = run.folder.checkpoint(step)
        request = first_request(all_gather_object(run.context.stopping.request))
        done = f"saved {path.name}" if self._is_saved() else "left the evaluation"
        run.console.notice(f"stopped by {request}: {done}")
        run.records.interrupted(step, request)
        if run.plan.world.is_main:
            record_interruption(step, path.name if self._is_saved() else None)

    def _is_saved(self) -> bool:
        """Whether there is a checkpoint of the present step; other nodes may see its folder later."""
        return self.run.context.progress.saved == self.trainer.state.global_step
