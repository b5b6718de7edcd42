"""What is wrong with a recipe by itself: no file, model, GPU or world size is looked at here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dsrun.errors import UsageError
from dsrun.recipe.flags import ZERO_STAGE
from dsrun.recipe.parsed_value import shown_value
from dsrun.recipe.recipe import Recipe, phases


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, `high` itself included unless `below`; `fix` explains the bound."""

    low: float
    high: float | None = None
    below: bool = False
    fix: str | None = None

    def holds(self, value: float) -> bool:
        """Whether the value lies in the range."""
        if self.high is None:
            return value >= self.low
        return self.low <= value < self.high if self.below else self.low <= value <= self.high

    def __str__(self) -> str:
        if self.high is None:
            return f"at least {self.low:g}"
        return f"from {self.low:g} to {'below ' if self.below else ''}{self.high:.10g}"


POSITIVE = Range(1)
NOT_NEGATIVE = Range(0)
LENGTH = Range(1, 9_999_999, fix="it is counted in tokens")
RANGES = {
    "max_length": LENGTH,
    "max_source_length": LENGTH,
    "max_target_length": LENGTH,
    "val_max_target_length": LENGTH,
    "block_size": LENGTH,
    "generation_max_length": LENGTH,
    "global_batch_size": POSITIVE,
    "micro_batch_size": POSITIVE,
    "per_device_train_batch_size": POSITIVE,
    "per_device_eval_batch_size": POSITIVE,
    "gradient_accumulation_steps": POSITIVE,
    "eval_accumulation_steps": POSITIVE,
    "max_train_samples": POSITIVE,
    "max_eval_samples": POSITIVE,
    "max_predict_samples": POSITIVE,
    "num_proc": POSITIVE,
    "validation_split_percentage": Range(0, 99),
    "num_beams": POSITIVE,
    "generation_num_beams": POSITIVE,
    "lora": POSITIVE,
    "lora_alpha": POSITIVE,
    "lora_dropout": Range(0, 1, below=True),
    "nproc": POSITIVE,
    "master_port": Range(1, 65535),
    "early_stopping": POSITIVE,
    "keep": POSITIVE,
    "max_restarts": NOT_NEGATIVE,
    "hang_timeout": NOT_NEGATIVE,
    "profile": POSITIVE,
    "learning_rate": NOT_NEGATIVE,
    "warmup_steps": NOT_NEGATIVE,
    "weight_decay": NOT_NEGATIVE,
    "num_train_epochs": Range(0, 1e9),
    "label_smoothing_factor": Range(0, 1, below=True),
    "adam_beta1": Range(0, 1, below=True),
    "adam_beta2": Range(0, 1, below=True),
    # NumPy's generator takes no more.
    "seed": Range(0, 2**32 - 1),
    "data_seed": NOT_NEGATIVE,
    "dataloader_num_workers": NOT_NEGATIVE,
}


def validate(recipe: Recipe) -> tuple[str, ...]:
    """The notices that a recipe calls for. Raises UsageError for the first thing that cannot work."""
    notices: list[str] = []
    for check in CHECKS:
        notices.extend(check(recipe) or ())
    return tuple(notices)


def _ranges(recipe: Recipe) -> None:
    for name, limits in RANGES.items():
        value = recipe.value(name) if recipe.given(name) else None
        if value is not None and not limits.holds(value):
            raise UsageError(f"{recipe.where(name)}: {value} is not {limits}", fix=limits.fix)


def _model(recipe: Recipe) -> None:
    spec = recipe.spec
    if spec.model is None and spec.model_type is None and spec.config_name is None:
        raise UsageError(
            "no model to train", fix="name one with --model t5-small, or try --model demo-t5 or demo-llama"
        )
    for item in spec.model_config:
        key, equals, _ = item.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{recipe.where('model_config')}: {item!r} is not key=value")
    scratch = spec.from_scratch or spec.model is None
    for name in ("model_config", "config_overrides"):
        if recipe.value(name) and not scratch:
            raise UsageError(
                f"{recipe.where(name)} changes a model's config, which would no longer fit its weights",
                fix="add --from-scratch, or leave --model out and give --model-type",
            )


def _zero(recipe: Recipe) -> Iterator[str]:
    spec = recipe.spec
    _one_zero_source(recipe)
    if spec.offload != "none" and spec.zero == "0":
        raise UsageError(
            f"{recipe.where('offload')} {spec.offload} needs ZeRO", fix="use --zero 2, or --zero 3 for parameters too"
        )
    if spec.offload == "nvme" and spec.zero not in ("3", "auto"):
        # ZeRO-1 and 2 take any offload device for host memory (DeepSpeedZeroOptimizer tests `device !=
        # none`).
        raise UsageError(
            f"{recipe.where('offload')} nvme needs --zero 3: stages 1 and 2 would fill host memory instead",
            fix="use --zero 3, or --offload cpu",
        )
    if spec.offload == "nvme" and not spec.nvme_path:
        raise UsageError(
            f"{recipe.where('offload')} nvme needs a folder", fix="add --nvme-path DIR on a local NVMe disk"
        )
    if spec.nvme_path and spec.offload != "nvme":
        yield f"{recipe.where('nvme_path')} has no effect without --offload nvme"


def _one_zero_source(recipe: Recipe) -> None:
    """A JSON of the user's own says everything about ZeRO; FSDP shards on its own."""
    own_json = bool(recipe.value("deepspeed"))
    for name in ("zero", "offload", "nvme_path"):
        if own_json and recipe.given(name):
            raise UsageError(
                f"{recipe.where(name)} and {recipe.where('deepspeed')} both configure ZeRO",
                fix="keep one: the JSON holds the stage and the offloading",
            )
    if recipe.value("fsdp") and (own_json or recipe.spec.zero != "0"):
        default = "" if own_json or recipe.given("zero") else f", and --zero {ZERO_STAGE} is the default"
        raise UsageError(
            f"{recipe.where('fsdp')} and ZeRO both shard the model{default}",
            fix="keep one of them: FSDP with --zero 0, or ZeRO without --fsdp",
        )


def _batch(recipe: Recipe) -> None:
    micro, per_device = recipe.spec.micro_batch_size, recipe.hf.get("per_device_train_batch_size")
    if micro is not None and per_device is not None and micro != per_device:
        raise UsageError(
            f"{recipe.where('micro_batch_size')} {micro} and {recipe.where('per_device_train_batch_size')} "
            f"{per_device} contradict each other",
            fix="they are the same size; give one",
        )
    for name in ("micro_batch_size", "per_device_train_batch_size"):
        if recipe.spec.auto_micro_batch and recipe.given(name):
            raise UsageError(
                f"{recipe.where(name)} {recipe.value(name)} and {recipe.where('auto_micro_batch')} contradict each"
                " other",
                fix="give one of them",
            )
    if recipe.spec.auto_micro_batch and not recipe.spec.remedy:
        raise UsageError(
            f"{recipe.where('auto_micro_batch')} finds the micro batch by way of the remedy that"
            f" {recipe.where('remedy')} refuses",
            fix="leave out --no-remedy, or give a number",
        )


def _data(recipe: Recipe) -> None:
    spec = recipe.spec
    if not phases(recipe):
        raise UsageError(
            f"{recipe.where('do_train')} and {recipe.where('do_eval')} are both false: there is nothing to do",
            fix="leave one out",
        )
    if spec.streaming and recipe.value("max_steps") <= 0 and "train" in phases(recipe):
        raise UsageError(
            f"{recipe.where('streaming')} needs to know when to stop: a stream has no length", fix="add --max_steps N"
        )
    if not spec.ignore_pad_token_for_loss:
        raise UsageError(
            f"{recipe.where('ignore_pad_token_for_loss')}: padding in the loss ties it to the batch's shape",
            fix="leave the flag out",
        )


def _precision(recipe: Recipe) -> None:
    if recipe.value("bf16") and recipe.value("fp16"):
        raise UsageError(
            f"{recipe.where('bf16')} and {recipe.where('fp16')} exclude each other", fix="keep --bf16 where it works"
        )


def _task(recipe: Recipe) -> None:
    if recipe.spec.task == "causal-lm" and recipe.value("predict_with_generate"):
        raise UsageError(
            f"{recipe.where('predict_with_generate')} is for seq2seq; a causal LM is evaluated by its loss",
            fix="leave the flag out",
        )


def _lora(recipe: Recipe) -> Iterator[str]:
    spec = recipe.spec
    if spec.lora is None:
        for name in ("lora_alpha", "lora_dropout", "lora_targets"):
            if recipe.given(name):
                value = shown_value(name, recipe.value(name))
                yield f"{recipe.where(name)} {value} has no effect without --lora RANK"
    elif spec.from_scratch:
        yield f"{recipe.where('lora')} with --from-scratch leaves random weights under the adapters"


def _saving(recipe: Recipe) -> None:
    every = recipe.spec.save_every
    if every is None:
        return
    if every != "auto" and not (every.isdecimal() and int(every) > 0):
        raise UsageError(
            f"{recipe.where('save_every')} {every}: neither a number of steps nor auto", fix="--save-every 500"
        )
    for name in ("save_strategy", "save_steps"):
        if recipe.given(name):
            raise UsageError(
                f"{recipe.where('save_every')} and {recipe.where(name)} both say when to save", fix="keep one of them"
            )


def _survival(recipe: Recipe) -> Iterator[str]:
    """Training arguments that stand in the way of dsrun's own saving and resuming."""
    if recipe.value("save_only_model"):
        yield f"{recipe.where('save_only_model')}: neither a restart nor --resume can go on from such checkpoints"
    if recipe.value("enable_jit_checkpoint"):
        raise UsageError(
            f"{recipe.where('enable_jit_checkpoint')} saves on SIGTERM without asking the other ranks",
            fix="leave it out: a run of dsrun saves on SIGTERM by itself, all ranks after the same step",
        )
    if recipe.value("restore_callback_states_from_checkpoint"):
        raise UsageError(
            f"{recipe.where('restore_callback_states_from_checkpoint')} puts new callbacks in place of dsrun's own",
            fix="leave it out: early stopping goes on where it was, also without it",
        )


def _idle(recipe: Recipe) -> Iterator[str]:
    """Training arguments that the Trainer takes and never looks at."""
    if recipe.value("sortish_sampler"):
        instead = "--train-sampling-strategy group_by_length puts samples of similar length together"
        yield f"{recipe.where('sortish_sampler')} has no effect: {instead}"


Check = Callable[[Recipe], Iterator[str] | None]
CHECKS: tuple[Check, ...] = (_ranges, _model, _zero, _batch, _data, _precision, _task, _lora, _saving, _survival, _idle)
