"""The optimizer and scheduler blocks: names, parameters, and warm-ups that do not do what they seem to."""

from __future__ import annotations

import math
from typing import Any

from dsrun.findings.finding import Level
from dsrun.messages import Message, joined
from dsrun.zero.lint.codes import Findings
from dsrun.zero.lint.engine import LATE
from dsrun.zero.schema import (
    legacy,
    optimizer_params,
    own_schedulers,
    schedulers,
    shown,
    suggestion,
    torch_optimizers,
)
from dsrun.zero.view import AUTO, MISSING, ConfigView

# deepspeed.runtime.zero.utils.ZERO_SUPPORTED_OPTIMIZERS; the mu… ones are torch's Adam underneath.
TESTED = ("adam", "adamw", "adagrad", "lion", "muon", "muadam", "muadamw")
TESTED_OF_TORCH = ("Adam", "AdamW", "Adagrad")
NEEDS_MUP = ("muadam", "muadamw", "musgd")
RATES = ("lr", "eps", "weight_decay")
PARAMS = ("optimizer", "params")
AT = ("scheduler", "params")


def check_optimizer(view: ConfigView, report: Findings) -> None:
    """Check the optimizer block."""
    block = view.raw("optimizer")
    if not isinstance(block, dict):
        return
    name = block.get("type")
    if name is None:
        level: Level = "error" if view.for_trainer else "warning"
        message = Message("the optimizer block has no type: DeepSpeed builds no optimizer")
        report.add(level, "optimizer_needs", ("optimizer",), message, Message('add "type": "AdamW"'))
    elif isinstance(name, str) and not (view.for_trainer and name == AUTO):
        _name(name, view, report)
        params = block.get("params")
        if isinstance(params, dict):
            _params(name, params, view, report)


def _name(name: str, view: ConfigView, report: Findings) -> None:
    path, own = ("optimizer", "type"), name.lower() in optimizer_params()
    if not own and name not in torch_optimizers():
        gone = legacy()["optimizers"].get(name.lower())
        known = ["Adam", "AdamW", "Adagrad", "Lamb", "Lion", "Muon", *torch_optimizers()]
        fix = Message("use {name}", name=gone[1]) if gone else suggestion(name, known, Message("use AdamW"))
        problem = Message("DeepSpeed has no optimizer {name}", name=name)
        if gone:
            problem = Message("{problem}: {reason}", problem=problem, reason=Message(gone[0]))
        report.error(
            "unknown_optimizer",
            path,
            joined("; ", [problem, LATE]),
            fix,
        )
        return
    tested = name.lower() in TESTED if own else name in TESTED_OF_TORCH
    # DeepSpeed takes the value as it is: every text is true.
    if not tested and view.stage and not view.value("zero_allow_untested_optimizer"):
        message = Message("ZeRO does not take {name} without being told to: {late}", name=name, late=LATE)
        report.error(
            "untested_optimizer", path, message, Message('add "zero_allow_untested_optimizer": true, or use AdamW')
        )
    if name.lower() in NEEDS_MUP:
        report.warning(
            "optimizer_needs", path, Message("{name} needs the package mup", name=name), Message("pip install mup")
        )


def _params(name: str, params: dict[str, Any], view: ConfigView, report: Findings) -> None:
    own = name.lower() in optimizer_params()
    known = optimizer_params()[name.lower()] if own else list(torch_optimizers().get(name, ())) or None
    for key in params:
        if known is not None and key not in known and key != "max_grad_norm":
            fix: str = suggestion(key, known, Message("it takes {names}", names=", ".join(known)))
            # _muon_param_groups looks up what it knows, where the other optimizers are handed everything.
            level: Level = "warning" if name.lower() == "muon" else "error"
            message = (
                Message("{name} has no parameter {key}, and DeepSpeed silently ignores it", name=name, key=key)
                if level == "warning"
                else Message("{name} has no parameter {key}: {late}", name=name, key=key, late=LATE)
            )
            report.add(level, "optimizer_param", (*PARAMS, key), message, fix)
    if "max_grad_norm" in params:
        message = Message("max_grad_norm is not a parameter of an optimizer: {late}", late=LATE)
        report.error(
            "optimizer_param", (*PARAMS, "max_grad_norm"), message, Message('use "gradient_clipping" at the top level')
        )
    for key in RATES:
        value = params.get(key, MISSING)
        if value is not MISSING and not _filled(value, view) and not isinstance(value, int | float):
            if key == "eps" and isinstance(value, list):  # Adafactor takes a pair
                continue
            fix = Message("write {value!r} without quotes", value=float(value)) if _is_finite(value) else ""
            report.error(
                "optimizer_param",
                (*PARAMS, key),
                Message("{key} is {value}, not a number: {late}", key=key, value=shown(value), late=LATE),
                fix,
            )
    betas = params.get("betas", MISSING)
    if betas is not MISSING and not _filled(betas, view) and not _two_betas(betas):
        message = Message("betas is {betas}, not two numbers from 0 to below 1: {late}", betas=shown(betas), late=LATE)
        report.error("optimizer_param", (*PARAMS, "betas"), message, Message("write [0.9, 0.999]"))


def _filled(value: Any, view: ConfigView) -> bool:
    """An "auto" is the Trainer's business, and a text without it."""
    return view.for_trainer and bool(value == AUTO)


def _two_betas(betas: Any) -> bool:
    return isinstance(betas, list) and len(betas) == 2 and all(isinstance(b, int | float) and 0 <= b < 1 for b in betas)


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def check_scheduler(view: ConfigView, report: Findings) -> None:
    """Check the scheduler block."""
    block = view.raw("scheduler")
    if not isinstance(block, dict) or block.get("type") is None:
        return
    name, params = block["type"], block.get("params")
    if view.for_trainer and name == AUTO:
        return
    known = schedulers().get(name) if isinstance(name, str) else None
    if known is None:
        have = Message("DeepSpeed has {names}", names=", ".join(own_schedulers()))
        fix = suggestion(str(name), schedulers(), have)
        message = Message("DeepSpeed has no scheduler {name}: {late}", name=shown(name), late=LATE)
        report.error("unknown_scheduler", ("scheduler", "type"), message, fix)
        return
    if name not in own_schedulers() and view.stage:
        # torch's classes test isinstance(optimizer, Optimizer), which ZeRO's are not.
        message = Message(
            "torch's schedulers do not take ZeRO's optimizer, so {name} fails: {late}", name=name, late=LATE
        )
        report.error(
            "unknown_scheduler", ("scheduler", "type"), message, Message("use WarmupDecayLR or WarmupCosineLR")
        )
        return
    if not isinstance(params, dict):
        report.error(
            "scheduler_param",
            ("scheduler",),
            Message("{name} has no params: {late}", name=name, late=LATE),
            Message('add "params": {…}'),
        )
        return
    _scheduler_params(str(name), known, params, report)
    if str(name).startswith("Warmup"):
        _warmup(str(name), params, view, report)


def _scheduler_params(name: str, known: dict[str, bool], params: dict[str, Any], report: Findings) -> None:
    for key in params:
        if key not in known:
            fix = suggestion(key, known, Message("it takes {names}", names=", ".join(known)))
            report.error(
                "scheduler_param",
                (*AT, key),
                Message("{name} has no parameter {key}: {late}", name=name, key=key, late=LATE),
                fix,
            )
    for key, required in known.items():
        if required and key not in params:
            report.error(
                "scheduler_param",
                AT,
                Message("{name} needs {key}: {late}", name=name, key=key, late=LATE),
                Message('add "{key}": …', key=key),
            )


def _warmup(name: str, params: dict[str, Any], view: ConfigView, report: Findings) -> None:
    """Where a warm-up fails, and where it quietly trains at another rate (deepspeed.runtime.lr_schedules)."""
    steps, total = params.get("warmup_num_steps", 1000), params.get("total_num_steps", MISSING)
    if not _filled(steps, view) and (not isinstance(steps, int) or steps <= 0):
        message = Message(
            "warmup_num_steps is {steps}, not a whole number above 0: {late}", steps=shown(steps), late=LATE
        )
        report.error("scheduler_warmup", (*AT, "warmup_num_steps"), message, Message("write 1 for no warm-up"))
    for key in ("warmup_min_lr", "warmup_max_lr", "total_num_steps"):
        value = params.get(key, 0)
        allowed = (
            isinstance(value, int | float | list) or _filled(value, view) or (key == "warmup_max_lr" and value is None)
        )
        if not allowed:
            message = Message("{key} is {value}, not a number: {late}", key=key, value=shown(value), late=LATE)
            report.error("scheduler_warmup", (*AT, key), message)
    if isinstance(total, int | float) and isinstance(steps, int | float) and total < steps:
        message = Message(
            "the warm-up takes {steps} of {total} steps: training ends before its peak rate",
            steps=shown(steps),
            total=shown(total),
        )
        path = (*AT, "warmup_num_steps") if "warmup_num_steps" in params else (*AT, "total_num_steps")
        report.warning("scheduler_warmup", path, message, Message("write a smaller warmup_num_steps"))
    if params.get("warmup_type", "log") not in ("log", "linear"):
        message = Message(
            "warmup_type is {warmup_type}; DeepSpeed knows log and linear, and takes log",
            warmup_type=shown(params["warmup_type"]),
        )
        report.warning("scheduler_warmup", (*AT, "warmup_type"), message, Message('write "linear"'))
    _peak(name, params, view, report)


def _peak(name: str, params: dict[str, Any], view: ConfigView, report: Findings) -> None:
    """WarmupLR and WarmupDecayLR write warmup_max_lr over the optimizer's lr; WarmupDecayLR's default is 0.001."""
    if name == "WarmupCosineLR":
        return
    peak, lr = params.get("warmup_max_lr", MISSING), view.raw("optimizer", "params", "lr")
    if peak is MISSING and name == "WarmupDecayLR":
        message = Message(
            "without warmup_max_lr WarmupDecayLR trains at its own default of 0.001, whatever the optimizer's lr"
        )
        rate = '"auto"' if view.for_trainer else shown(lr) if isinstance(lr, int | float) else "…"
        report.warning("scheduler_warmup", AT, message, Message('add "warmup_max_lr": {rate}', rate=rate))
    if isinstance(peak, int | float) and isinstance(lr, int | float) and peak != lr:
        message = Message(
            "warmup_max_lr is {peak} and the optimizer's lr {lr}; the scheduler's holds", peak=shown(peak), lr=shown(lr)
        )
        report.warning(
            "scheduler_warmup", (*AT, "warmup_max_lr"), message, Message('write "warmup_max_lr": {lr}', lr=shown(lr))
        )
    if isinstance(peak, int | float) and lr == AUTO:
        message = Message(
            "warmup_max_lr is {peak} while the optimizer's lr follows --learning_rate; the two must agree",
            peak=shown(peak),
        )
        report.warning("scheduler_warmup", (*AT, "warmup_max_lr"), message, Message('write "warmup_max_lr": "auto"'))
    low = params.get("warmup_min_lr", 0)
    if isinstance(peak, int | float) and isinstance(low, int | float) and low > peak:
        message = Message(
            "warmup_min_lr {low} is above warmup_max_lr {peak}: the rate goes down", low=shown(low), peak=shown(peak)
        )
        report.warning("scheduler_warmup", (*AT, "warmup_min_lr"), message)
