"""What the HF Trainer and accelerate do with a file before DeepSpeed sees it: blocks they need, "auto", training flags.

accelerate walks through the whole file before it calls DeepSpeed and raises ValueError for every "auto" that is
left (DeepSpeedPlugin.deepspeed_config_process), even where DeepSpeed has an "auto" of its own. DeepSpeed alone
drops an "auto" in its pydantic models and takes it for a text elsewhere.

The look-ups are those of transformers.integrations.deepspeed, accelerate.utils.dataclasses.DeepSpeedPlugin and
Accelerator._prepare_deepspeed.
"""

from __future__ import annotations

import math
from typing import Any

from dsrun.findings.finding import Level
from dsrun.messages import Message
from dsrun.zero.lint.codes import Findings
from dsrun.zero.lint.source import dotted
from dsrun.zero.lint.structure import MONITORS, leaves
from dsrun.zero.schema import Block, Path, blocks, shown
from dsrun.zero.view import AUTO, CONSTANTS, MISSING, TRAINER_FILLS, ZERO, ConfigView, Flags

# fill_match looks into these; anything but an object in the way ends in AttributeError.
LOOKED_INTO = (("optimizer",), ("optimizer", "params"), ("scheduler",), ("scheduler", "params"), ("fp16",), ("bf16",))
LEGACY_BF16 = ("bfloat16",)


def check_trainer(view: ConfigView, report: Findings) -> None:
    """Errors when the file is for the Trainer, warnings where it stops a file that DeepSpeed alone would run."""
    level: Level = "error" if view.for_trainer else "warning"
    if not view.has(ZERO) and not (view.is_target_given and not view.for_trainer):
        message = Message("accelerate refuses a file without zero_optimization")
        report.add(
            level, "trainer_stops", (), message, Message('add "zero_optimization": {"stage": 0}, or another stage')
        )
    if view.is_block("checkpoint.writer"):
        # create_universal_parallel_info reads CROSS_SIZE, which torchrun and accelerate do not set.
        message = Message("checkpoint writers work only under DeepSpeed's own launcher: under others the engine stops")
        report.warning("trainer_stops", ("checkpoint", "writer"), message, Message("leave it out"))
    if not view.for_trainer:
        return
    if isinstance(view.raw(ZERO), bool):
        message = Message(
            "the Trainer looks for a stage in zero_optimization, which is {zero}, and fails", zero=shown(view.raw(ZERO))
        )
        report.error("trainer_stops", (ZERO,), message, Message('write {"stage": 1}'))
    if not view.has("optimizer") and view.raw(ZERO, "offload_optimizer") is None:
        message = Message("accelerate looks for a device in offload_optimizer, which is null, and fails")
        report.error("trainer_stops", (ZERO, "offload_optimizer"), message, Message("leave the key out"))
    for path in LOOKED_INTO:
        value = view.raw(*path)
        if value is not MISSING and value is not None and not isinstance(value, dict):
            message = Message(
                "the Trainer looks into {key}, which is {value}, and fails", key=path[-1], value=shown(value)
            )
            report.error("trainer_stops", path, message, Message('write "{key}": {…}', key=path[-1]))
    micro = view.raw("train_micro_batch_size_per_gpu")
    if view.raw("gradient_accumulation_steps") is None and micro not in (MISSING, None):
        message = Message("accelerate multiplies by gradient_accumulation_steps, which is null, and fails")
        report.error("trainer_stops", ("gradient_accumulation_steps",), message, Message('write "auto"'))
    size, path = view.raw("tensor_parallel", "autotp_size"), ("tensor_parallel", "autotp_size")
    if size is not MISSING and not isinstance(size, int | float):
        message = Message("accelerate compares autotp_size with 1 and fails on {size}", size=shown(size))
        report.error("trainer_stops", path, message, Message("write a number without quotes"))
    _texts(view, report)
    _ignored(view, report)


def _texts(view: ConfigView, report: Findings) -> None:
    """Values that DeepSpeed converts from a text, and the Trainer compares as they are."""
    for name in ("fp16", "bf16"):
        value, path = view.raw(name, "enabled"), (name, "enabled")
        if isinstance(value, str) and value != AUTO:
            message = Message(
                "enabled is {value}, a text, which --{name} never equals: the Trainer stops",
                value=shown(value),
                name=name,
            )
            report.error("trainer_stops", path, message, Message('write "auto", or true or false without quotes'))
    stage = view.raw(ZERO, "stage")
    if isinstance(stage, str) and stage != AUTO and view.stage == 3:
        message = Message(
            "the Trainer does not take {stage}, a text, for ZeRO-3: it saves weights without content",
            stage=shown(stage),
        )
        report.warning("trainer_stops", (ZERO, "stage"), message, Message('write "stage": 3'))


def _ignored(view: ConfigView, report: Findings) -> None:
    """Keys that the Trainer makes useless."""
    if view.has(*LEGACY_BF16):
        message = Message("accelerate adds a bf16 block that is off, so DeepSpeed ignores bfloat16 and trains in fp32")
        report.warning("ignored_key", LEGACY_BF16, message, Message("rename it to bf16"))
    if view.has("steps_per_print"):
        message = Message("accelerate sets steps_per_print to infinity; the Trainer logs every --logging_steps")
        report.info("no_effect", ("steps_per_print",), message, Message("leave it out"))
    if isinstance(view.raw("activation_checkpointing"), dict):
        message = Message("models of transformers do not use DeepSpeed's activation checkpointing")
        report.info("no_effect", ("activation_checkpointing",), message, Message("use --activation_checkpointing"))


# DeepSpeedPlugin.__post_init__ sets it to infinity.
OVERWRITTEN = (("steps_per_print",),)


def check_auto(view: ConfigView, report: Findings) -> None:
    """Check every "auto" of the file."""
    for path, value in leaves(view.config):
        if not isinstance(value, str) or value != AUTO:
            continue
        if view.for_trainer:
            _under_the_trainer(path, view, report)
        else:
            _under_deepspeed(path, view, report)


def _under_the_trainer(path: Path, view: ConfigView, report: Findings) -> None:
    if path in TRAINER_FILLS or path in OVERWRITTEN:
        return
    if path == ("zero_allow_untested_optimizer",) and not view.has("optimizer"):
        return  # deepspeed_optim_sched sets it to true
    if path in CONSTANTS:
        constant = shown(CONSTANTS[path])
        report.warning(
            "auto_is_a_constant",
            path,
            Message('accelerate fills this "auto" with {constant}, whatever the training flags say', constant=constant),
            Message('write "{key}": {constant}, or the value you mean', key=path[-1], constant=constant),
        )
        return
    report.error(
        "auto_nobody_fills",
        path,
        Message(
            '{key} is "auto", which neither the Trainer nor accelerate fills: accelerate stops with it', key=path[-1]
        ),
        _instead(path),
    )


def _instead(path: Path) -> str:
    default = default_of(path)
    if default is None:
        return Message("write a value, or leave the key out")
    return Message(
        """write "{key}": {value} (DeepSpeed's default) or leave it out""", key=path[-1], value=shown(default)
    )


def _under_deepspeed(path: Path, view: ConfigView, report: Findings) -> None:
    block = _block_of(path)
    dropped = (block is not None and block.style == "model") or path[-1] in MONITORS
    own = block is not None and block.path in ("expert_parallel", "data_types", "pipeline")
    if dropped:
        report.warning(
            "auto_nobody_fills",
            path,
            Message(
                'nothing fills this "auto": DeepSpeed takes its default ({value}); under the Trainer '
                "accelerate refuses it",
                value=shown(default_of(path)),
            )
            if path not in TRAINER_FILLS | CONSTANTS.keys()
            else Message(
                'only the HF Trainer fills this "auto": without it DeepSpeed takes {value}',
                value=shown(default_of(path)),
            ),
            _instead(path),
        )
    elif own:
        report.warning(
            "auto_nobody_fills",
            path,
            Message('the HF Trainer refuses this "auto"'),
            Message("leave the key out: it is the default"),
        )
    elif block is not None and path[-1] in block.keys and path not in BATCH:
        report.warning("auto_nobody_fills", path, Message('DeepSpeed takes this "auto" for a text'), _instead(path))


BATCH = (("train_batch_size",), ("train_micro_batch_size_per_gpu",), ("gradient_accumulation_steps",))


def _block_of(path: Path) -> Block | None:
    return blocks().get(dotted(path[:-1]))


def default_of(path: Path) -> object:
    """DeepSpeed's default for a key, None when it is unknown or null."""
    block = _block_of(path)
    key = block.spellings.get(str(path[-1])) if block else None
    return block.keys[key].get("default") if block and key else None


UNKNOWN = object()
PARAMS = ("optimizer", "params")
WARMUP = ("scheduler", "params")


def check_against(view: ConfigView, report: Findings) -> None:
    """Check what the file and the flags say about the same thing."""
    flags = view.flags
    if flags is None:
        return
    for path, name, value in _pairs(flags, view.world_size):
        ours = view.raw(*path)
        # A mismatch is `ds_val is not None and ds_val != hf_val`, so 1 and true or 1 and 1.0 are the same.
        if value is UNKNOWN or ours in (MISSING, None, AUTO) or ours == value:
            continue
        if path[-1] == "enabled" and isinstance(ours, str):
            continue  # `_texts` reports it
        flag: str = flags.where(name)
        if name not in flags.given:
            flag = Message("{flag} (not given, so its default)", flag=flag)
        report.error(
            "conflicts_with_flag",
            path,
            Message(
                "{key} is {ours}, but {flag} asks for {value}: the Trainer stops",
                key=path[-1],
                ours=shown(ours),
                flag=flag,
                value=shown(value),
            ),
            Message('write "{key}": "auto", or {flag}', key=path[-1], flag=_fix(name, ours)),
        )
    _unanswered(view, flags, report)
    if view.stage == 3 and flags.values.get("auto_find_batch_size"):
        message = Message(
            "{flag} does not work with ZeRO-3: the Trainer stops",
            flag=flags.where("auto_find_batch_size"),
        )
        report.error("conflicts_with_flag", (ZERO, "stage"), message, Message("set --per_device_train_batch_size"))


def _fix(name: str, ours: Any) -> str:
    if name == "train_batch_size":
        return f"--global-batch-size {shown(ours)}"
    if name in ("fp16", "bf16"):
        return f"--{name} {shown(bool(ours))}"
    if name == "adam_betas":
        return Message("--adam_beta1 and --adam_beta2")
    return f"--{name} {shown(ours)}"


def _pairs(flags: Flags, world_size: int | None) -> list[tuple[Path, str, Any]]:
    """(path in the file, flag, value the Trainer expects there) for everything that it compares."""
    get = flags.values.get
    micro = get("per_device_train_batch_size", UNKNOWN)
    steps = get("gradient_accumulation_steps", UNKNOWN)
    train = get("train_batch_size", UNKNOWN)
    if train is UNKNOWN and UNKNOWN not in (micro, steps) and world_size is not None:
        train = micro * steps * world_size
    finds = bool(get("auto_find_batch_size"))
    total = get("max_steps", -1)
    beta1, beta2 = get("adam_beta1", UNKNOWN), get("adam_beta2", UNKNOWN)
    betas = UNKNOWN if UNKNOWN in (beta1, beta2) else [beta1, beta2]
    return [
        (("train_micro_batch_size_per_gpu",), "per_device_train_batch_size", UNKNOWN if finds else micro),
        (("gradient_accumulation_steps",), "gradient_accumulation_steps", steps),
        (("train_batch_size",), "train_batch_size", UNKNOWN if finds else train),
        (("gradient_clipping",), "max_grad_norm", get("max_grad_norm", UNKNOWN)),
        ((*PARAMS, "lr"), "learning_rate", get("learning_rate", UNKNOWN)),
        ((*PARAMS, "betas"), "adam_betas", betas),
        ((*PARAMS, "eps"), "adam_epsilon", get("adam_epsilon", UNKNOWN)),
        ((*PARAMS, "weight_decay"), "weight_decay", get("weight_decay", UNKNOWN)),
        ((*WARMUP, "warmup_max_lr"), "learning_rate", get("learning_rate", UNKNOWN)),
        ((*WARMUP, "warmup_num_steps"), "warmup_steps", _warmup_steps(get("warmup_steps", UNKNOWN), total)),
        ((*WARMUP, "total_num_steps"), "max_steps", total if total > 0 else UNKNOWN),
        (("fp16", "enabled"), "fp16", _switch(flags, "fp16")),
        (("bf16", "enabled"), "bf16", _switch(flags, "bf16")),
    ]


def _warmup_steps(warmup: Any, total: int) -> Any:
    """TrainingArguments.get_warmup_steps: below 1 it is a share of all steps; fill_match then takes at least 1."""
    if warmup is UNKNOWN or (0 < warmup < 1 and total <= 0):
        return UNKNOWN
    return max(1, int(warmup) if warmup >= 1 else math.ceil(max(total, 0) * warmup))


def _switch(flags: Flags, name: str) -> Any:
    """dsrun chooses the precision after the file when no flag does."""
    requested = {each for each in ("fp16", "bf16", "fp16_full_eval", "bf16_full_eval") if each in flags.given}
    return bool(flags.values.get(name) or flags.values.get(f"{name}_full_eval")) if requested else UNKNOWN


def _unanswered(view: ConfigView, flags: Flags, report: Findings) -> None:
    """Flags that a block of the file, or a key that it lacks, leaves without effect."""
    silent = (
        ("max_grad_norm", not view.has("gradient_clipping"), ("gradient_clipping",), Message("DeepSpeed clips at 1.0")),
        ("optim", view.has("optimizer"), ("optimizer",), Message("the optimizer of the file is used")),
        ("lr_scheduler_type", view.has("scheduler"), ("scheduler",), Message("the scheduler of the file is used")),
    )
    for name, is_silent, path, instead in silent:
        if name in flags.given and is_silent:
            key = path[0]
            fix = (
                Message('add "{key}": "auto"', key=key)
                if not view.has(key)
                else Message("remove the block {key}, or the flag", key=key)
            )
            message = Message("{flag} has no effect: {instead}", flag=flags.where(name), instead=instead)
            report.warning("flag_has_no_effect", path, message, fix)
    steps = flags.values.get("gradient_accumulation_steps", 1)
    if not view.has("gradient_accumulation_steps") and steps not in (1, UNKNOWN):
        message = Message(
            "{flag} {steps} has no effect: accelerate takes 1",
            flag=flags.where("gradient_accumulation_steps"),
            steps=steps,
        )
        path = ("gradient_accumulation_steps",)
        report.warning("flag_has_no_effect", path, message, Message('add "gradient_accumulation_steps": "auto"'))
