"""The Trainer, with dsrun's batches, loss, evaluation and checkpoints in place of the stock ones."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers.trainer
from accelerate.utils import DummyOptim
from transformers.trainer import _is_peft_model

from dsrun.plugin import Example
from dsrun.train.base.plan import LoadedPlugin
from dsrun.train.base.rank_context import RankContext
from dsrun.train.checkpoint import elastic, plain
from dsrun.train.checkpoint.checkpointing import CheckpointingTrainer
from dsrun.train.checkpoint.save import CheckpointSave
from dsrun.train.checkpoint.snapshot import write_safetensors
from dsrun.train.checkpoint.verify import check_best
from dsrun.train.loop import engine
from dsrun.train.loop.evaluation import Evaluator, LossState
from dsrun.train.loop.loaders import DataPlace, MicroBatch, TrainingLoader, to_device, training_loader
from dsrun.train.loop.nan import NanGuard
from dsrun.train.loop.preemption import EvaluationLeftError, StopVote, remember_evaluation
from dsrun.train.loop.step_times import StepTimes
from dsrun.train.loss.protocol import STATE_FILE, Loss
from dsrun.train.model.parameter_groups import LearningRates
from dsrun.train.packing.decide import BatchingPlan
from dsrun.zero.ops import stage_of

# Accelerate's own reads everything that is to be skipped, a stream from its start, and its loader forgets the epoch.
transformers.trainer.skip_first_batches = TrainingLoader.start_at


class RunTrainer(CheckpointingTrainer):
    """A Seq2SeqTrainer for both tasks whose loss, gradients and data order do not depend on the cluster's shape."""

    # compute_loss divides by the target tokens, or the pairs, of the whole global batch, accumulation steps included;
    # else `training_step` would divide once more, by the micro batches of a step (transformers' trainer.py).
    loss_is_scaled_for_ga = True
    control: Any
    model_wrapped: Any

    def __init__(
        self,
        *,
        batching: BatchingPlan,
        ds_config: dict[str, Any] | None,
        eval_progress: Callable[[int, int], None],
        context: RankContext,
        nan_guard: NanGuard,
        rates: LearningRates,
        loss: Loss,
        plugin: LoadedPlugin | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.context = context
        self.nan_guard = nan_guard
        self.interrupted = self.wants_to_save = False
        self.taken: list[MicroBatch] = []
        self.may_leave_evaluation = True
        self._votes = torch.zeros(2, dtype=torch.int64)
        self._step_rate: float | None = None
        self.batching = batching
        self.split = batching.split
        self.ds_config = ds_config
        self.on_checkpoint: Callable[..., None] = lambda *_args, **_details: None
        self.eval_progress = eval_progress
        self.is_zero3 = stage_of(ds_config) == 3
        self.loss_of_model = loss
        self.rates = rates
        self.plugin = plugin
        # Tokens of the samples, and the cells of the tensors that held them.
        self._seen = torch.zeros(2, dtype=torch.int64, device=self.args.device)
        self._work = torch.zeros(5, dtype=torch.int64, device=self.args.device)
        self.seconds_not_training = 0.0
        self.last_examples: list[Example] = []
        self.last_metrics: tuple[int, dict[str, float]] | None = None
        self.step_times = StepTimes(self.args.device.type, self.split.world_size, ddp=ds_config is None)
        self.add_callback(DataPlace(self))
        self.loss_state = LossState(self)
        self.add_callback(self.loss_state)

    def create_optimizer(self, model: Any = None) -> Any:
        if self.rates:
            arguments = self.args
            groups = self.rates.optimizer_groups(self.model, arguments.learning_rate, arguments.weight_decay)
            if isinstance(self.optimizer, DummyOptim):
                # DeepSpeed's own, which the engine makes of these.
                self.optimizer.params = groups
            elif self.optimizer is None:
                kind, options = self.get_optimizer_cls_and_kwargs(arguments, self.model)
                self.optimizer_cls_and_kwargs = kind, {**options, "params": groups}
        return super().create_optimizer(model)

    @property
    def plugin_metrics(self) -> tuple[str, ...]:
        return self.plugin.plugin.metric_names if self.plugin else ()

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        engine.copy_defaults(self.optimizer if optimizer is None else optimizer)
        return super().create_scheduler(num_training_steps, optimizer)

    # data

    def get_train_dataloader(self) -> TrainingLoader:
        return training_loader(self.args, self.train_dataset, self.batching, self.data_collator)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], torch.Tensor]:
        """The micro batches of one optimizer step, and what its loss is a mean over, on all ranks together."""
        self.taken = batches = self.step_times.fetch(epoch_iterator, num_batches)
        loss = self.loss_of_model
        items = sum(loss.items(b["labels"]) for b in batches)
        read = sum(b.tokens for b in batches), sum(b.cells for b in batches)
        work = (sum(each) for each in zip(*(b.work for b in batches), strict=True))
        requests = int(self.context.stopping.is_requested), int(self.wants_to_save)
        counts = [torch.as_tensor(n).reshape(-1) for n in (*read, *work, *requests, items)]
        counts = to_device(torch.cat(counts), device)
        if self.split.world_size > 1:
            dist.all_reduce(counts)
        self._votes = counts[7:9]
        # Each of the ranks that share rows has counted them.
        counts = counts // self.split.sharing
        self._seen += counts[:2]
        self._work += counts[2:7]
        # DeepSpeed moves its own scheduler on before the Trainer reads the rate to log.
        self._step_rate = float(self.optimizer.param_groups[0]["lr"])
        samples = [batch.ids for batch in batches]
        self.nan_guard.begin(self.state.global_step + 1, batches, self._tr_loss, samples)
        # A step whose rows are all filler has a loss of 0 and no items: 0, not 0 / 0.
        return batches, counts[9:].clamp(min=1).squeeze()

    @property
    def ranks_want_to_stop(self) -> bool:
        """Whether any rank had been asked to stop when this step began; the same on all ranks."""
        # Reading it waits for the GPU to begin the step, so it is only read where a stop may be requested.
        return self.context.stopping.is_on and bool(self._votes[0])

    @property
    def ranks_want_to_save(self) -> bool:
        """Whether rank 0 requested a checkpoint when this step began (--save-every auto); the same on all ranks."""
        return bool(self._votes[1])

    @property
    def is_saved(self) -> bool:
        """Whether there is a checkpoint of the present step; other nodes may see its folder later."""
        return self.context.progress.saved == self.state.global_step

    def save_present(self) -> None:
        """Have a checkpoint of the present step. A collective."""
        if not self.is_saved:
            self._save_checkpoint(None, None)

    def any_rank_stops(self) -> bool:
        """Whether any rank has been asked to stop by now; called on all ranks."""
        return StopVote(self.context.stopping, world_size=self.split.world_size, device=self.args.device).newest()

    @property
    def tokens_seen(self) -> int:
        """Tokens read by all ranks since the start, padding left out. Reading it waits for the GPU."""
        return int(self._seen[0])

    @property
    def cells_seen(self) -> int:
        """Tokens and padding of this attempt's micro batches on all ranks, tokens before it included."""
        return int(self._seen[1])

    @property
    def work_done(self) -> list[int]:
        """What model FLOPs follow from (see dsrun/zero/memory/flops.py), of this attempt's samples on all ranks."""
        return list(map(int, self._work.tolist()))

    def _finalize_training(self, *args: Any) -> Any:
        # Steps come no more, and the best model may take long to load.
        self.context.heart.enter("ending")
        # After an early stop the last checkpoint may still be under way. It is promised below, and may be loaded.
        self.finish_saving()
        if self.save_again:
            self._save_checkpoint(None, None)
        self.interrupted = self.interrupted or self.any_rank_stops()
        if self.interrupted:
            # Loading the best model is for the end of the run, and there may be no time for it.
            self.args.load_best_model_at_end = False
            self.save_present()
        elif self.is_saved:
            step = self.state.global_step
            self.context.stopping.keep(step, self.saving.run.checkpoint(step).name)
        return super()._finalize_training(*args)

    def _load_best_model(self) -> None:
        """The best checkpoint may have been saved by another number of ranks, before an elastic resume."""
        best = Path(self.state.best_model_checkpoint)
        check_best(best, trust=self.saving.trust, beat=self.saving.beat)
        with elastic.best_checkpoint(self, run=Path(self.args.output_dir)):
            if self.is_deepspeed_enabled or self.is_fsdp_enabled:
                super()._load_best_model()
            else:
                self._load_from_checkpoint(str(best))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """All weights. The stock method leaves out those that files call otherwise than modules, such as experts, which
        its log alone tells, and loads adapters by whatever names it finds; what FSDP does is strict."""
        checkpoint = Path(resume_from_checkpoint)
        if not (self.is_fsdp_enabled or _is_peft_model(self.model)):
            widest = max((each.dtype for each in self.model.parameters()), key=lambda dtype: dtype.itemsize)
            self.model.load_state_dict(plain.load_weights(checkpoint, self.model, widest))
            return
        if _is_peft_model(self.model):
            plain.check_adapter(checkpoint, self.model)
        super()._load_from_checkpoint(resume_from_checkpoint, model)

    @property
    def already_finished(self) -> bool:
        """Whether the checkpoint that was resumed left no step to train."""
        return 0 < self.state.global_step == getattr(self, "_initial_global_step", None)

    def count_tokens(self, before: int) -> None:
        self._seen.fill_(before)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.loss_state.note()
        super()._save_checkpoint(model, trial)

    def _write(self, save: CheckpointSave) -> None:
        super()._write(save)
        if tensors := self.loss_of_model.tensors():
            save.store(write_safetensors, tensors, save.folder / STATE_FILE)

    def _run_epoch(self, **kwargs: Any) -> None:
        """One epoch; none where the checkpoint that was resumed is a finished run's: it has seen all steps, or has run
        out of patience. The stock loop looks at both only after a step, so it would train one more."""
        if self.control.should_training_stop or self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        super()._run_epoch(**kwargs)

    def _prepare_input(self, data: Any) -> Any:
        if isinstance(data, torch.Tensor) and not data.is_floating_point() and data.is_pinned():
            return to_device(data, self.args.device)
        return super()._prepare_input(data)

    # loss

    def training_step(self, model: Any, inputs: MicroBatch, num_items_in_batch: torch.Tensor | None = None) -> Any:
        # Here, as compute_loss gets a plain copy of the micro batch (`_prepare_inputs` makes a new mapping).
        self.loss_of_model.ids, self.loss_of_model.spans = inputs.ids, inputs.spans
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.context.heart.beat()
        return loss

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | None = None,
    ) -> Any:
        """This rank's share of the global batch's mean loss, times the world size, as ranks' gradients are averaged."""
        self.step_times.enter_forward()
        loss, outputs = self.loss_of_model(model, inputs, num_items_in_batch)
        # DDP and ZeRO average gradients over ranks, and `items` are those of all. The stock compute_loss does the same
        # under `average_tokens_across_devices`, but only for models whose forward takes `num_items_in_batch`.
        loss = self.nan_guard.check_loss(loss * self.split.world_size)
        return (loss, outputs) if return_outputs else loss

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        return self.nan_guard.check_norm(self, super()._get_grad_norm(model, grad_norm=grad_norm))

    def _get_learning_rate(self) -> float:
        return super()._get_learning_rate() if self._step_rate is None else self._step_rate

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Called on all ranks."""
        window = self.loss_of_model.window
        if "loss" in logs and window is not None:
            if self.split.world_size > 1:
                dist.all_reduce(window)
            logs = {**logs, **self.loss_of_model.logged(window)}
            window.zero_()
        super().log(self.nan_guard.correct_logs(logs), start_time)

    # evaluation

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval", **gen_kwargs: Any
    ) -> dict[str, float]:
        """Exact loss and, for seq2seq, scores of generated text over `eval_dataset`, by default the validation data."""
        began = time.monotonic()
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        generate = self.args.predict_with_generate
        before = self.context.heart.phase
        self.context.heart.enter("generating" if generate else "evaluating")
        found, examples = Evaluator(self).run(rows, generate=generate, progress=self._evaluated())
        self.context.heart.enter(before)
        self.last_examples = examples
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        self.log(metrics)
        self.last_metrics = (self.state.global_step, metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        self.seconds_not_training += time.monotonic() - began
        return metrics

    def _evaluated(self) -> Callable[[int, int], None]:
        """What to do after each batch of an evaluation, on all ranks: leave it, if any of them is asked to."""
        vote = StopVote(self.context.stopping, world_size=self.split.world_size, device=self.args.device)

        def after_batch(done: int, total: int) -> None:
            self.context.heart.beat()
            self.eval_progress(done, total)
            if self.may_leave_evaluation and done < total and vote.any_rank_requested():
                raise EvaluationLeftError(f"left after {done:,} of {total:,}")

        return after_batch

    def _maybe_log_save_evaluate(
        self, tr_loss: Any, grad_norm: Any, model: Any, trial: Any, *args: Any, **kwargs: Any
    ) -> None:
        """As in the stock loop; an evaluation that the ranks leave is made up for by the run that goes on."""
        try:
            super()._maybe_log_save_evaluate(tr_loss, grad_norm, model, trial, *args, **kwargs)
        except EvaluationLeftError:
            self.interrupted = True
            remember_evaluation(self.state, due=True)
            self._save_checkpoint(model, trial)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Also has every new best saved where the best is to be loaded at the end: the stock Trainer does so only if
        that step is one at which it saves. The last checkpoint of a run that stops early is not left out either
        (`--save-strategy best` would)."""
        new = super()._determine_best_metric(metrics, trial)
        if new and self.args.load_best_model_at_end:
            self.control.should_save = True
        return new or self.control.should_training_stop

    def make_up_evaluation(self) -> None:
        """Evaluate the model of the checkpoint just loaded, which an earlier attempt had no time for."""
        try:
            metrics = self._evaluate(None, None)
        except EvaluationLeftError:
            self.interrupted = self.control.should_training_stop = True
            return
        if super()._determine_best_metric(metrics, None):
            self.state.best_model_checkpoint = str(Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}")

    def prepare_for_evaluation(self) -> None:
        """Without training before it, evaluation under ZeRO-3 needs an engine to gather parameters."""
        if self.is_zero3 and self.model_wrapped is self.model:
            from transformers.integrations.deepspeed import deepspeed_init

            deepspeed_init(self, num_training_steps=0, inference=True)
            # Accelerate's prepare_model leaves a ZeRO-3 model as it is; only prepare builds the engine that gathers.
            self.model_wrapped = self.accelerator.prepare(self.model)
        elif self.model_wrapped is self.model:
            self.model.to(self.args.device)
