"""A DeepSpeed config against the training flags it will be used with.

The Trainer compares them key by key (HfTrainerDeepSpeedConfig.fill_match) and raises ValueError for differences, but
only when training starts, after the model and the data are loaded.
"""

from __future__ import annotations

import math
from typing import Any

from dsrun.zero.coercion import shown
from dsrun.zero.lint.reporter import Reporter
from dsrun.zero.schema import Path
from dsrun.zero.view import AUTO, MISSING, ZERO, ConfigView, Flags

UNKNOWN = object()
PARAMS = ("optimizer", "params")
WARMUP = ("scheduler", "params")


def check_against(view: ConfigView, sheet: Reporter) -> None:
    """Judge what the file and the flags say about the same thing."""
    flags = view.flags
    if flags is None:
        return
    for path, name, value in _pairs(flags, view.world_size):
        ours = view.raw(*path)
        # A mismatch is `ds_val is not None and ds_val != hf_val`, so 1 and true or 1 and 1.0 are the same.
        if value is UNKNOWN or ours in (MISSING, None, AUTO) or ours == value:
            continue
        default = "" if name in flags.given else " (not given, so its default)"
        sheet.error(
            "conflicts_with_flag",
            path,
            f"{path[-1]} is {shown(ours)}, but {flags.where(name)}{default} asks for {shown(value)}: the Trainer stops",
            f'write "{path[-1]}": "auto", or {_fix(name, ours)}',
        )
    _unanswered(view, flags, sheet)
    if view.stage == 3 and flags.values.get("auto_find_batch_size"):
        message = f"{flags.where('auto_find_batch_size')} does not work with ZeRO-3: the Trainer stops"
        sheet.error("conflicts_with_flag", (ZERO, "stage"), message, "set --per_device_train_batch_size")


def _fix(name: str, ours: Any) -> str:
    if name == "train_batch_size":
        return f"--global-batch-size {shown(ours)}"
    if name in ("fp16", "bf16"):
        return f"--{name} {shown(bool(ours))}"
    if name == "adam_betas":
        return "--adam_beta1 and --adam_beta2"
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
    asked = {each for each in ("fp16", "bf16", "fp16_full_eval", "bf16_full_eval") if each in flags.given}
    return bool(flags.values.get(name) or flags.values.get(f"{name}_full_eval")) if asked else UNKNOWN


def _unanswered(view: ConfigView, flags: Flags, sheet: Reporter) -> None:
    """Flags that a block of the file, or a key that it lacks, leaves without effect."""
    silent = (
        (
            "max_grad_norm",
            not view.has("gradient_clipping"),
            ("gradient_clipping",),
            "DeepSpeed clips at 1.0",
        ),
        ("optim", view.has("optimizer"), ("optimizer",), "the optimizer of the file is used"),
        ("lr_scheduler_type", view.has("scheduler"), ("scheduler",), "the scheduler of the file is used"),
    )
    for name, is_silent, path, instead in silent:
        if name in flags.given and is_silent:
            key = path[0]
            fix = f'add "{key}": "auto"' if not view.has(key) else f"remove the block {key}, or the flag"
            message = f"{flags.where(name)} has no effect: {instead}"
            sheet.warning("flag_has_no_effect", path, message, fix)
    steps = flags.values.get("gradient_accumulation_steps", 1)
    if not view.has("gradient_accumulation_steps") and steps not in (1, UNKNOWN):
        message = f"{flags.where('gradient_accumulation_steps')} {steps} has no effect: accelerate takes 1"
        path = ("gradient_accumulation_steps",)
        sheet.warning("flag_has_no_effect", path, message, 'add "gradient_accumulation_steps": "auto"')
