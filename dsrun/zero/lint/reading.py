"""What DeepSpeed checks when it reads a config, beyond single keys: validators, assertions, and look-ups that choke.

Each rule names where DeepSpeed does it. tests/integration/test_lint_verdicts.py holds them against the real thing.
"""

from __future__ import annotations

import math
from typing import Any

from dsrun.findings.finding import Level
from dsrun.messages import Message
from dsrun.zero.lint.codes import Findings
from dsrun.zero.lint.structure import EAGER, check_model_value
from dsrun.zero.schema import blocks, shown
from dsrun.zero.view import AUTO, CONSTANTS, MISSING, ZERO, ConfigView

MASTER_KEYS = (
    ("fp16", "fp16_master_weights_and_grads"),
    ("bf16", "bf16_master_weights_and_grads"),
    ("bf16", "bf16_optimizer_states"),
)


def check_reading(view: ConfigView, report: Findings) -> None:
    """Everything that makes DeepSpeedConfig raise and that no single key shows."""
    for check in (_zero, _both_names, _zenflow, _loss_scale, _precision, _allreduce, _optimizer, _data, _rest):
        check(view, report)


def _zero(view: ConfigView, report: Findings) -> None:
    """DeepSpeedZeroConfig's validators; read_zero_config_deprecated for a bare true."""
    bucket = view.raw("allgather_size")
    if view.raw(ZERO) is True and bucket not in (MISSING, AUTO):
        check_model_value(("allgather_size",), blocks()[ZERO].keys["allgather_bucket_size"], bucket, report)
    if not isinstance(view.raw(ZERO), dict) or view.stage is None:
        return
    if view.taken(ZERO, "compute_grad_norm") is False and view.stage not in (1, 2):
        path = view.spelled(ZERO, "compute_grad_norm")
        report.error(
            "needs_stage",
            path,
            Message("compute_grad_norm: false needs stage 1 or 2, not {stage}: {eager}", stage=view.stage, eager=EAGER),
        )
    if isinstance(view.raw(ZERO, "offload_optimizer"), dict):
        ratio = view.taken(f"{ZERO}.offload_optimizer", "ratio")
        if isinstance(ratio, float) and ratio < 1 and view.stage != 3:
            path = (ZERO, "offload_optimizer", "ratio")
            report.error(
                "needs_stage",
                path,
                Message("a ratio below 1 needs stage 3, not {stage}: {eager}", stage=view.stage, eager=EAGER),
            )


def _both_names(view: ConfigView, report: Findings) -> None:
    """DeepSpeedConfigModel._process_deprecated_field: the old and the new name of one setting."""
    keys = blocks()[ZERO].keys
    for old, entry in keys.items():
        if not entry.get("replaces") or view.raw(ZERO, old) in (MISSING, AUTO):
            continue
        new = next(key for key, each in keys.items() if entry["deprecated"] in (key, each.get("name")))
        path = view.spelled(ZERO, new)
        filled = view.for_trainer and path in CONSTANTS
        if view.raw(*path) is not MISSING and (view.raw(*path) != AUTO or filled):
            report.error(
                "given_twice",
                (ZERO, old),
                Message("{old} and {new} are both given: {eager}", old=old, new=path[-1], eager=EAGER),
                Message("remove {old}", old=old),
            )


def _zenflow(view: ConfigView, report: Findings) -> None:
    """ZenFlowConfig.validate_fields."""
    if not isinstance(view.raw(ZERO, "zenflow"), dict):
        return
    block = f"{ZERO}.zenflow"
    strategy = view.taken(block, "select_strategy")
    if isinstance(strategy, str) and strategy not in ("auto", "step", "epoch"):
        path = (ZERO, "zenflow", "select_strategy")
        report.error(
            "not_a_choice",
            path,
            Message(
                "select_strategy is {strategy}, not auto, step or epoch: {eager}", strategy=shown(strategy), eager=EAGER
            ),
        )
    for name in ("select_interval", "update_interval"):
        value, path = view.taken(block, name), (ZERO, "zenflow", name)
        if isinstance(value, str) and value != AUTO:
            report.error(
                "wrong_type",
                path,
                Message(
                    '{name} is {value}, not a whole number or "auto": {eager}',
                    name=name,
                    value=shown(value),
                    eager=EAGER,
                ),
            )
        elif name == "update_interval" and isinstance(value, int) and value < 1:
            report.error(
                "out_of_range",
                path,
                Message("{name} is {value}, not at least 1: {eager}", name=name, value=value, eager=EAGER),
            )


def _loss_scale(view: ConfigView, report: Findings) -> None:
    """DeepSpeedFP16Config's validators."""
    if not isinstance(view.raw("fp16"), dict):
        return
    for name in ("loss_scale", "loss_scale_window", "min_loss_scale"):
        raw = view.raw("fp16", name)
        odd_text = isinstance(raw, str) and name != "loss_scale" and raw != AUTO and not _is_int_to_python(raw)
        if isinstance(raw, bool) or odd_text:
            report.error(
                "wrong_type",
                ("fp16", name),
                Message("{name} is {raw}, not a number: {eager}", name=name, raw=shown(raw), eager=EAGER),
            )
    scale = view.taken("fp16", "loss_scale")
    if isinstance(scale, float) and not (math.isfinite(scale) and scale >= 0):
        report.error(
            "out_of_range",
            ("fp16", "loss_scale"),
            Message("loss_scale is {scale:g}, not at least 0: {eager}", scale=scale, eager=EAGER),
        )
    # Under "auto" the Trainer may turn fp16 on, and a wrong window would then stop it.
    may_be_on = view.precision("fp16") is not False
    if may_be_on and scale == 0:
        for name in ("loss_scale_window", "min_loss_scale"):
            value = view.taken("fp16", name)
            if isinstance(value, int) and value <= 0:
                message = Message("{name} is {value}; the dynamic loss scale needs it above 0", name=name, value=value)
                level: Level = "error" if view.precision("fp16") else "warning"
                report.add(level, "out_of_range", ("fp16", name), message)


def _precision(view: ConfigView, report: Findings) -> None:
    """DeepSpeedConfig._initialize_params and _do_error_check."""
    if view.precision("fp16") and view.precision("bf16"):
        report.error(
            "fp16_and_bf16",
            ("bf16",),
            Message("fp16 and bf16 are both on: {eager}", eager=EAGER),
            Message('write "fp16": {"enabled": false}'),
        )
    bf16 = "bf16" if isinstance(view.raw("bf16"), dict) or view.for_trainer else "bfloat16"
    for family, name in MASTER_KEYS:
        block = bf16 if family == "bf16" else family
        if not isinstance(view.raw(block), dict) or view.taken(block, name) is not True:
            continue
        if view.stage == 0:
            report.error(
                "needs_stage",
                (block, name),
                Message("{name} needs ZeRO stage 1, 2 or 3: {eager}", name=name, eager=EAGER),
            )
        if name == "bf16_optimizer_states" and view.taken(block, "bf16_master_weights_and_grads") is False:
            message = Message("{name} needs bf16_master_weights_and_grads: {eager}", name=name, eager=EAGER)
            report.error("needs_key", (block, name), message, Message('add "bf16_master_weights_and_grads": true'))


def _allreduce(view: ConfigView, report: Findings) -> None:
    """DeepSpeedConfig._do_error_check: what gradient_allreduce_op "sum" does not go with."""
    value = view.raw("gradient_allreduce_op")
    if not isinstance(value, str) or value.lower() != "sum":
        return
    path = ("gradient_allreduce_op",)
    if view.stage == 3:
        report.error(
            "needs_stage",
            path,
            Message('"sum" does not work with stage 3: {eager}', eager=EAGER),
            Message('write "mean"'),
        )
    zenflow = view.raw(ZERO, "zenflow")
    if zenflow is not MISSING and zenflow is not None and zenflow != AUTO:
        report.error(
            "needs_key",
            path,
            Message('"sum" does not work with zenflow: {eager}', eager=EAGER),
            Message('write "mean"'),
        )
    if isinstance(view.raw("compile"), dict) and view.taken("compile", "deepcompile") is True:
        report.error(
            "needs_key",
            path,
            Message('"sum" does not work with DeepCompile: {eager}', eager=EAGER),
            Message('write "mean"'),
        )


def _optimizer(view: ConfigView, report: Findings) -> None:
    """get_optimizer_params and _do_warning_check: params have to be an object, max_grad_norm a number."""
    block = view.raw("optimizer")
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        return
    params = block.get("params")
    if params is not None and not isinstance(params, dict):
        message = Message("params is {params}, not an object {…}: {eager}", params=shown(params), eager=EAGER)
        report.error("not_an_object", ("optimizer", "params"), message)
    elif params and not isinstance(params.get("max_grad_norm", 0), int | float):
        message = Message(
            "max_grad_norm is {max_grad_norm}, not a number: {eager}",
            max_grad_norm=shown(params["max_grad_norm"]),
            eager=EAGER,
        )
        report.error("wrong_type", ("optimizer", "params", "max_grad_norm"), message)


def _data(view: ConfigView, report: Findings) -> None:
    """deepspeed.runtime.data_pipeline.config: blocks that need a key once they are enabled, and int()."""
    at = ("data_efficiency", "data_sampling")
    curriculum = view.raw(*at, "curriculum_learning")
    if isinstance(curriculum, dict) and curriculum.get("enabled") and "curriculum_metrics" not in curriculum:
        report.error(
            "needs_key",
            (*at, "curriculum_learning"),
            Message("an enabled block needs curriculum_metrics: {eager}", eager=EAGER),
        )
    batching = view.raw(*at, "dynamic_batching")
    if not isinstance(batching, dict):
        return
    if batching.get("enabled") and "max_tokens" not in batching:
        report.error(
            "needs_key", (*at, "dynamic_batching"), Message("an enabled block needs max_tokens: {eager}", eager=EAGER)
        )
    names = ["min_batch_size", "max_batch_size", *(["max_tokens"] if batching.get("enabled") else [])]
    for name in names:
        if name in batching and not _is_int_to_python(batching[name]):
            path = (*at, "dynamic_batching", name)
            report.error(
                "wrong_type",
                path,
                Message(
                    "{name} is {value}, not a whole number: {eager}",
                    name=name,
                    value=shown(batching[name]),
                    eager=EAGER,
                ),
            )


def _is_int_to_python(value: Any) -> bool:
    try:
        int(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _rest(view: ConfigView, report: Findings) -> None:
    """autotuning's folders, data_types.keep_in_fp32_modules, torch_autocast's module names."""
    autotuning = view.raw("autotuning")
    for name in ("results_dir", "exps_dir"):
        if isinstance(autotuning, dict) and name in autotuning and not autotuning[name]:
            report.error(
                "wrong_type", ("autotuning", name), Message("{name} is empty: {eager}", name=name, eager=EAGER)
            )
    keep = view.raw("data_types", "keep_in_fp32_modules")
    listed = isinstance(keep, list) and all(isinstance(each, str) for each in keep)
    if keep is not MISSING and not listed and keep != AUTO:
        path = ("data_types", "keep_in_fp32_modules")
        report.error(
            "wrong_type",
            path,
            Message("keep_in_fp32_modules is {keep}, not a list of names: {eager}", keep=shown(keep), eager=EAGER),
        )
    modules = view.raw("torch_autocast", "lower_precision_safe_modules")
    if isinstance(modules, list) and not all(isinstance(each, str) for each in modules):
        path = ("torch_autocast", "lower_precision_safe_modules")
        report.error("wrong_type", path, Message("the list holds something that is not a name: {eager}", eager=EAGER))
