"""The Trainer of a run around its model, fitted to the data and to the number of ranks."""

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from accelerate import DistributedType
from transformers import PrinterCallback, set_seed

from dsrun.recipe.deepspeed_file import BATCH
from dsrun.runs.folder import RunFolder
from dsrun.train.base.console import Console, Internal, PlainTask
from dsrun.train.base.labels import shifts_labels
from dsrun.train.base.plan import TrainingPlan
from dsrun.train.base.rank_context import RankContext
from dsrun.train.base.refusals import refusal
from dsrun.train.base.run_records import RunRecords, event_reporter
from dsrun.train.data.data_request import PreparedData
from dsrun.train.data.mixture import DataMixture, sets_of
from dsrun.train.loop.arguments import LOSS_METRICS, TEXT_METRICS, as_usage_errors, check_arguments, training_arguments
from dsrun.train.loop.callbacks import guard_trackers
from dsrun.train.loop.generation import has_prompts
from dsrun.train.loop.nan import NanGuard, steps_to_skip
from dsrun.train.loop.trainer import RunTrainer
from dsrun.train.loss.distill import DistillLoss, load_teacher
from dsrun.train.loss.dpo import DpoLoss, without_dropout
from dsrun.train.loss.model_loss import LossBySet, ModelLoss, PluginLoss, own_loss_notice
from dsrun.train.loss.probe import is_conditional, parameters_without_gradient
from dsrun.train.loss.protocol import AdaptersOff, FrozenModel, Loss, ReferenceSync
from dsrun.train.model.adapters import new_tokens, select_trained
from dsrun.train.model.build_model import build
from dsrun.train.model.load import fit_embeddings, set_languages, stretch_positions
from dsrun.train.model.parameter_groups import LearningRates
from dsrun.train.model.quantization import DTYPES, check_quantized, convert_to_fp8, quantization_config
from dsrun.train.model.zero3 import forget_batches, keep_whole
from dsrun.train.packing.decide import BatchingPlan, decide_batching
from dsrun.train.packing.sampler import BatchGrouping
from dsrun.train.sequence import SequenceLoss, activations_on_host, save_memory, without_fused_loss
from dsrun.zero.ops import stage_of

DEFAULT_LOGGING_STEPS = 10


@dataclass(frozen=True)
class PreparedRun:
    """What a run on this worker consists of before its model is built."""

    plan: TrainingPlan
    tokenizer: Any
    data: PreparedData
    folder: RunFolder
    console: Console
    records: RunRecords
    context: RankContext


@dataclass(frozen=True)
class TrainerBuilder(PreparedRun):
    """Builds the Trainer of a run; `grouping` is that of the checkpoint to go on from."""

    grouping: BatchGrouping | None = None

    def build(self) -> RunTrainer:
        """The Trainer around the model. Building its arguments registers DeepSpeed's configuration, without which a
        ZeRO-3 model would be built whole on every rank."""
        plan, tokenizer = self.plan, self.tokenizer
        arguments_of = partial(training_arguments, run=self.folder.path, validation=self.data.validation)
        arguments = arguments_of(plan)
        if plan.recipe.spec.long_context:
            without_fused_loss(arguments)
        set_seed(arguments.seed)
        model = self._model(arguments.seed, arguments.label_smoothing_factor)
        forget_batches(model)
        keep_whole(model, sharded=stage_of(plan.deepspeed) == 3)
        loss = self._by_set(self._loss(model, arguments), arguments)
        rows = self.data.train if "train" in plan.phases else ()
        strategy = plan.recipe.hf.get("train_sampling_strategy")
        batching = decide_batching(plan, rows, model, loss=loss, strategy=strategy, saved=self.grouping)
        if batching.method:
            # The `auto` batch keys of DeepSpeed's JSON are filled in where arguments are made (trainer_config_process
            # in transformers/integrations/deepspeed.py): with rows for samples they are others.
            arguments = arguments_of(with_split(plan, batching))
        if "logging_steps" not in plan.recipe.hf:
            arguments.logging_steps = logging_steps(arguments, self.data.train, plan.batch.global_batch)
        rates = LearningRates.of(plan.recipe.spec)
        self._set_generation(arguments)
        # As DataCollatorForSeq2Seq wants it, for the labels shifted by the model's own rule.
        self.data.collator.model = model
        if "train" in plan.phases:
            check_arguments(arguments, model, plan.deepspeed, notify=self.console.notice)
            if rates:
                self.console.notice(rates.describe(model, arguments.learning_rate))
        policy, folder, rank = plan.recipe.spec.on_nan, self.folder.path, plan.world.rank
        skipped = steps_to_skip(folder, plan.recipe, self.console.notice)
        on_skip = event_reporter(self.records, self.console, "nan", " was left out")
        guard = NanGuard(policy, folder, rank=rank, skipped_steps=skipped, on_skip=on_skip)
        with as_usage_errors("training arguments"):
            trainer = RunTrainer(
                model=model,
                args=arguments,
                processing_class=tokenizer,
                data_collator=self.data.collator,
                train_dataset=self.data.train,
                eval_dataset=self.data.validation,
                batching=batching,
                ds_config=plan.deepspeed,
                eval_progress=PlainTask(self.console, "evaluating").update,
                context=self.context,
                nan_guard=guard,
                loss=loss,
                rates=rates,
                plugin=plan.plugin,
            )
        if isinstance(loss, DpoLoss) and plan.recipe.spec.sync_ref_model:
            trainer.add_callback(ReferenceSync(loss.reference, plan.recipe.spec))
        if plan.recipe.spec.long_context:
            save_memory(trainer, length=plan.recipe.spec.long_context // plan.batch.sharing)
        if plan.recipe.spec.activation_offload or (plan.recipe.spec.long_context and arguments.device.type == "cuda"):
            activations_on_host(trainer)
        # The Trainer adds it where tqdm is off; it prints each log line as a dict.
        trainer.remove_callback(PrinterCallback)
        guard_trackers(trainer.callback_handler, self.console.notice)
        if "train" in plan.phases and plan.deepspeed is None:
            self._fit_ddp(trainer)
        return trainer

    def _fit_ddp(self, trainer: RunTrainer) -> None:
        """One rank needs no DistributedDataParallel; with more, it waits at the second step for gradients that never
        come, unless it searches for the parameters that have none."""
        accelerator = trainer.accelerator
        if self.plan.world.size == 1:
            # accelerate takes any process with a LOCAL_RANK for one of several (state.py), and wraps its model.
            accelerator.state.distributed_type = DistributedType.NO
            return
        if trainer.args.ddp_find_unused_parameters:
            return
        unused = parameters_without_gradient(trainer)
        if unused or is_conditional(self.plan.config):
            accelerator.ddp_handler.find_unused_parameters = True
            what = f"{unused[0]} gets no gradient" if unused else "not every batch reaches all parameters"
            self.console.notice(Internal(f"{what}: DistributedDataParallel searches for them in each step"))

    def _loss(self, model: Any, arguments: Any) -> Loss:
        spec, smoothing, plugin = self.plan.recipe.spec, arguments.label_smoothing_factor, self.plan.plugin
        if plugin and plugin.has("loss"):
            if smoothing:
                self.console.notice("--label-smoothing-factor has no effect on the loss of a plugin")
            return PluginLoss(plugin, model)
        if spec.long_context:
            base = model.get_base_model() if spec.lora else model
            return SequenceLoss(base, degree=self.plan.batch.sharing, length=spec.long_context, smoothing=smoothing)
        if spec.task not in ("dpo", "distill"):
            return ModelLoss.of(model.get_base_model() if spec.lora else model, smoothing)
        sharded = stage_of(self.plan.deepspeed) == 3
        if spec.task == "distill":
            teacher = load_teacher(self.plan, self.tokenizer, model, notify=self.console.notice)
            frozen = FrozenModel(teacher, sharded=sharded, reference=False)
            return DistillLoss(frozen, spec, shifted=shifts_labels(model), smoothing=smoothing)
        if spec.lora:
            return DpoLoss(AdaptersOff(model), spec)
        # The weights as they were before training, also where a checkpoint is about to be loaded into `model`.
        return DpoLoss(FrozenModel(self._base(arguments.seed)[0], sharded=sharded), spec)

    def _by_set(self, loss: Loss, arguments: Any) -> Loss:
        """The loss, which for a mixture also counts that of each set, where it comes from logits that are at hand."""
        rows, reason = self.data.train, loss.no_logits
        if not isinstance(rows, DataMixture) or "train" not in self.plan.phases:
            return loss
        if arguments.use_liger_kernel and loss.kind != "logits":
            reason = reason or "Liger's fused loss makes no logits"
        if reason or not isinstance(loss, ModelLoss):
            self.console.notice(f"{reason}: the training loss of each set is not logged; evaluation is by set")
            return loss
        return LossBySet(loss, [*rows.sets], rows.cumulative_sizes)

    def _set_generation(self, arguments: Any) -> None:
        """How long generated texts may be; no generation where there are no prompts to generate from."""
        spec = self.plan.recipe.spec
        if self.plan.task == "seq2seq":
            arguments.generation_max_length = arguments.generation_max_length or self.data.collator.max_target_length
            return
        arguments.generation_max_length = arguments.generation_max_length or spec.val_max_target_length
        metric = arguments.metric_for_best_model
        splits = [rows for rows in (self.data.validation, self.data.test) if rows is not None]
        for name, rows in sets_of(self.data.validation).items():
            of_texts = {f"{prefix}{name}_{each}" for prefix in ("", "eval_") for each in TEXT_METRICS}
            if name and metric in of_texts and not has_prompts(rows):
                raise refusal("metric.no_prompts_in_set", metric=metric, name=name)
        if arguments.predict_with_generate and not any(map(has_prompts, splits)):
            if metric and not metric.endswith(LOSS_METRICS):
                raise refusal("metric.no_prompts", metric=metric)
            self.console.notice("--predict-with-generate has no effect: the evaluation data has no prompts")
            arguments.predict_with_generate = False

    def _model(self, seed: int, smoothing: float) -> Any:
        spec, task = self.plan.recipe.spec, self.plan.task
        tokens = new_tokens(self.plan.config.get_text_config().vocab_size, self.tokenizer, spec)
        model, notices = self._base(seed)
        if spec.task == "dpo":
            without_dropout(model)
        elif spec.task != "distill":
            plugin = self.plan.plugin
            notices.append(None if plugin and plugin.has("loss") else own_loss_notice(model, smoothing))
        if tokens and spec.lora:
            notices.append(f"the {len(tokens):,} new tokens are trained beside the adapters")
        for notice in filter(None, notices):
            self.console.notice(notice)
        return select_trained(model, spec, task, tokens, sharded=stage_of(self.plan.deepspeed) == 3)

    def _base(self, seed: int) -> tuple[Any, list[str | None]]:
        """The model as training begins with it, fitted to the tokenizer, and what was changed; the same each time."""
        spec = self.plan.recipe.spec
        quantization = quantization_config(spec, self.plan.precision) if spec.quantization else None
        notices: list[str | None] = []
        if self.plan.given.model:
            model = self.plan.given.model()
        else:
            # A model changes its config where it is fitted to the tokenizer.
            config, device = deepcopy(self.plan.config), self.plan.world.device
            model = build(spec, config, self.plan.task, quantization, seed=seed, device=device, notify=notices.append)
        converted = convert_to_fp8(model) if spec.fp8 else None
        # What is drawn from here on, for adapters and new rows, does not depend on what loading has drawn.
        set_seed(seed)
        notices.append(check_quantized(model, spec) if quantization else converted)
        return model, notices + fitted(model, self.plan, self.tokenizer)


def fitted(model: Any, plan: TrainingPlan, tokenizer: Any) -> list[str | None]:
    """Fit the model to the tokenizer and to the lengths asked for; returns what was changed."""
    spec = plan.recipe.spec
    notices = [fit_embeddings(model, tokenizer)]
    if spec.resize_position_embeddings:
        notices.append(stretch_positions(model, spec.max_source_length or spec.max_length))
    if plan.task == "seq2seq":
        set_languages(model, tokenizer, spec)
    return notices


def with_split(plan: TrainingPlan, batching: BatchingPlan) -> TrainingPlan:
    """The plan as Trainer and DeepSpeed are to see it, who count rows."""
    names = ("global_batch", "micro_batch", "accumulation")
    batch = replace(plan.batch, **{name: getattr(batching.split, name) for name in names})
    return replace(plan, batch=batch, deepspeed=plan.deepspeed and plan.deepspeed | dict.fromkeys(BATCH, "auto"))


def unquantized_base(plan: TrainingPlan, tokenizer: Any) -> Any:
    """The model of --model as it was before quantisation, in the precision of training, for adapters to be merged into;
    without DeepSpeed, on the CPU."""
    dtype = str(DTYPES[plan.precision]).removeprefix("torch.")
    spec = replace(plan.recipe.spec, quantization=None, weights_dtype=dtype)
    seed = plan.recipe.value("seed")
    model = build(spec, deepcopy(plan.config), plan.task, seed=seed, device=plan.world.device, alone=True)
    fitted(model, plan, tokenizer)
    return model


def logging_steps(arguments: Any, train: Any, global_batch: int) -> int:
    """Steps between log lines: ten, fewer in a run so short that ten would show nothing of its course."""
    total = arguments.max_steps
    if total <= 0 and hasattr(train, "__len__"):
        total = arguments.num_train_epochs * len(train) / global_batch
    return DEFAULT_LOGGING_STEPS if total <= 0 else max(1, min(DEFAULT_LOGGING_STEPS, int(total // 10)))
