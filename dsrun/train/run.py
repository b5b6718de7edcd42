"""A training run from recipe to finished model, on one worker. All ranks go through the same steps.

decide → data → engine → checkpoint, model and Trainer → train → final model → leave: the modules below, in this order,
are decide_plan.py, prepare.py, loop/engine.py, begin.py, loop/trainer.py and finish.py."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from dsrun.recipe.recipe import Recipe
from dsrun.runs.attempts import is_another
from dsrun.runs.folder import RunFolder
from dsrun.runs.heartbeat import HeartbeatWriter
from dsrun.system.host import TESTED, untested, versions
from dsrun.train.base.console import Console
from dsrun.train.base.distributed import DistributedWorld, init_process_group
from dsrun.train.base.plan import NOTHING, Given, load_plugin
from dsrun.train.base.rank_context import RankContext, cause_of, handler_from_env, is_supervised
from dsrun.train.base.run_records import RunRecords
from dsrun.train.base.speed import compiles
from dsrun.train.begin import build_trainer, find_start
from dsrun.train.data.encoding.tokenizer import load_tokenizer
from dsrun.train.decide_plan import decide_plan, in_tokens, read_memory_fallback, saved_batch
from dsrun.train.finish import evaluate_and_predict, leave, save_model, write_up
from dsrun.train.loop.build_trainer import PreparedRun
from dsrun.train.loop.engine import prepare_ops
from dsrun.train.loop.preemption import EvaluationLeftError
from dsrun.train.loop.trainer import RunTrainer
from dsrun.train.prepare import prepare_for_plan
from dsrun.train.sequence import with_long_context


def run(parts: PreparedRun) -> None:
    """Train, evaluate and save as the recipe says; returns early, with a checkpoint, when `context.stopping` says
    so."""
    with recorded(parts):
        begun = begin(parts)
        if begun.train():
            begun.finish()


def prepare_run(
    recipe: Recipe,
    title: str,
    world: DistributedWorld,
    folder: RunFolder,
    console: Console,
    *,
    context: RankContext | None = None,
    given: Given = NOTHING,
) -> PreparedRun:
    """Decide everything, with what earlier attempts have found out, prepare the data, and join the process group. A
    script's own model and rows are `given`."""
    context = context or RankContext(HeartbeatWriter(None, 0), handler_from_env({}))
    context.heart.enter("loading")
    strange = untested(versions(TESTED))
    if strange and not is_another(os.environ):
        console.notice(strange)
    if recipe.spec.auto_micro_batch and not is_supervised(os.environ):
        console.notice("--micro-batch-size auto needs `dsrun train`, which starts again with less when memory runs out")
    saved = saved_batch(recipe, folder)
    plan = decide_plan(
        with_long_context(recipe),
        title,
        world,
        notify=console.notice,
        fallback=read_memory_fallback(folder.path, recipe),
        saved_batch=saved,
        plugin=load_plugin(recipe.spec),
        given=given,
    )
    context.progress.micro_batch = plan.batch.micro_batch
    tokenizer = given.tokenizer or load_tokenizer(plan.recipe.spec)
    # Before any collective, which would time out while the others wait for a large dataset.
    data = prepare_for_plan(plan, tokenizer, console, context.heart)
    plan = in_tokens(plan, data, saved)
    if plan.deepspeed is not None:
        prepare_ops(plan.deepspeed, world, notify=console.notice, training="train" in plan.phases)
    # From here on a rank may wait for others.
    context.heart.join(world.group_timeout_s, compiles=compiles(plan.recipe.hf, plan.deepspeed))
    init_process_group(world, deepspeed=plan.deepspeed is not None)
    return PreparedRun(plan, tokenizer, data, folder, console, RunRecords(folder, main=world.is_main), context)


@contextmanager
def recorded(parts: PreparedRun) -> Iterator[None]:
    """Record an error inside, where no supervisor does, which knows which rank failed first, and what comes next."""
    try:
        yield
    except BaseException as error:
        if not is_supervised(os.environ) and not parts.context.stopping.stopped_before_training:
            parts.records.failure(error, step=parts.context.progress.step, cause=cause_of(error))
        raise


def begin(parts: PreparedRun) -> "BegunRun":
    """Find the checkpoint to go on from, and build the model and its Trainer."""
    start, facts = find_start(parts)
    if start:
        parts = replace(parts, plan=replace(parts.plan, deepspeed=start.configure(parts.plan.deepspeed)))
    return BegunRun(parts, build_trainer(parts, start, facts), str(start.path) if start else None)


@dataclass
class BegunRun:
    """A run with its Trainer: first `train`, then `finish`."""

    parts: PreparedRun
    trainer: RunTrainer
    checkpoint: str | None
    seconds: float = 0.0

    def train(self) -> bool:
        """Train, where the recipe says so; False if the run was asked to stop, and has saved a checkpoint."""
        trainer = self.trainer
        if "train" not in self.parts.plan.phases:
            trainer.prepare_for_evaluation()
            self.parts.context.stopping.begin()
            return True
        began = time.monotonic()
        trainer.train(resume_from_checkpoint=self.checkpoint)
        self.seconds = time.monotonic() - began
        if trainer.interrupted:
            self._leave()
        return not trainer.interrupted

    def finish(self) -> bool:
        """Write the model and evaluate it; False if the run was asked to stop before it was done."""
        parts, trainer = self.parts, self.trainer
        training = "train" in parts.plan.phases
        if training:
            save_model(parts, trainer)
        # No checkpoint can be made of the last step's state once the best weights are in its place.
        trainer.may_leave_evaluation = not training or trainer.is_saved or not trainer.args.load_best_model_at_end
        try:
            metrics, predictions = evaluate_and_predict(parts, trainer)
        except EvaluationLeftError:
            if training:
                trainer.save_present()
            self._leave()
            return False
        write_up(parts, trainer, metrics, predictions, seconds=self.seconds)
        return True

    def _leave(self) -> None:
        leave(self.parts, self.trainer.state.global_step, is_saved=self.trainer.is_saved)
