"""What DeepSpeed checks when it reads a config, beyond single keys: validators, assertions, and look-ups that choke.

Each rule names where DeepSpeed does it. tests/integration/test_lint_verdicts.py holds them against the real thing.
"""

import math
from typing import Any

from dsrun.findings.finding import Level
from dsrun.zero.lint.codes import ConfigFindings
from dsrun.zero.lint.structure import check_model_value
from dsrun.zero.schema import blocks, shown
from dsrun.zero.view import AUTO, CONSTANTS, MISSING, ZERO, ConfigView

MASTER_KEYS = (
    ("fp16", "fp16_master_weights_and_grads"),
    ("bf16", "bf16_master_weights_and_grads"),
    ("bf16", "bf16_optimizer_states"),
)


def check_reading(view: ConfigView, report: ConfigFindings) -> None:
    """Everything that makes DeepSpeedConfig raise and that no single key shows."""
    for check in (_zero, _both_names, _zenflow, _loss_scale, _precision, _allreduce, _optimizer, _data, _rest):
        check(view, report)


def _zero(view: ConfigView, report: ConfigFindings) -> None:
    """DeepSpeedZeroConfig's validators; read_zero_config_deprecated for a bare true."""
    bucket = view.raw("allgather_size")
    if view.raw(ZERO) is True and bucket not in (MISSING, AUTO):
        check_model_value(("allgather_size",), blocks()[ZERO].keys["allgather_bucket_size"], bucket, report)
    if not isinstance(view.raw(ZERO), dict) or view.stage is None:
        return
    if view.taken(ZERO, "compute_grad_norm") is False and view.stage not in (1, 2):
        report.add("needs_stage.grad_norm", view.spelled(ZERO, "compute_grad_norm"), stage=view.stage)
    if isinstance(view.raw(ZERO, "offload_optimizer"), dict):
        ratio = view.taken(f"{ZERO}.offload_optimizer", "ratio")
        if isinstance(ratio, float) and ratio < 1 and view.stage != 3:
            report.add("needs_stage.ratio", (ZERO, "offload_optimizer", "ratio"), stage=view.stage)


def _both_names(view: ConfigView, report: ConfigFindings) -> None:
    """DeepSpeedConfigModel._process_deprecated_field: the old and the new name of one setting."""
    keys = blocks()[ZERO].keys
    for old, entry in keys.items():
        if not entry.get("replaces") or view.raw(ZERO, old) in (MISSING, AUTO):
            continue
        new = next(key for key, each in keys.items() if entry["deprecated"] in (key, each.get("name")))
        path = view.spelled(ZERO, new)
        filled = view.for_trainer and path in CONSTANTS
        if view.raw(*path) is not MISSING and (view.raw(*path) != AUTO or filled):
            report.add("given_twice", (ZERO, old), old=old, new=path[-1])


def _zenflow(view: ConfigView, report: ConfigFindings) -> None:
    """ZenFlowConfig.validate_fields."""
    if not isinstance(view.raw(ZERO, "zenflow"), dict):
        return
    block = f"{ZERO}.zenflow"
    strategy = view.taken(block, "select_strategy")
    if isinstance(strategy, str) and strategy not in ("auto", "step", "epoch"):
        report.add("not_a_choice.strategy", (ZERO, "zenflow", "select_strategy"), strategy=shown(strategy))
    for name in ("select_interval", "update_interval"):
        value, path = view.taken(block, name), (ZERO, "zenflow", name)
        if isinstance(value, str) and value != AUTO:
            report.add("wrong_type.interval", path, name=name, value=shown(value))
        elif name == "update_interval" and isinstance(value, int) and value < 1:
            report.add("out_of_range.update", path, name=name, value=value)


def _loss_scale(view: ConfigView, report: ConfigFindings) -> None:
    """DeepSpeedFP16Config's validators."""
    if not isinstance(view.raw("fp16"), dict):
        return
    for name in ("loss_scale", "loss_scale_window", "min_loss_scale"):
        raw = view.raw("fp16", name)
        odd_text = isinstance(raw, str) and name != "loss_scale" and raw != AUTO and not _is_int_to_python(raw)
        if isinstance(raw, bool) or odd_text:
            report.add("wrong_type.number", ("fp16", name), name=name, raw=shown(raw))
    scale = view.taken("fp16", "loss_scale")
    if isinstance(scale, float) and not (math.isfinite(scale) and scale >= 0):
        report.add("out_of_range.loss_scale", ("fp16", "loss_scale"), scale=scale)
    # Under "auto" the Trainer may turn fp16 on, and a wrong window would then stop it.
    may_be_on = view.precision("fp16") is not False
    if may_be_on and scale == 0:
        for name in ("loss_scale_window", "min_loss_scale"):
            value = view.taken("fp16", name)
            if isinstance(value, int) and value <= 0:
                level: Level = "error" if view.precision("fp16") else "warning"
                report.add("out_of_range.scale_window", ("fp16", name), level=level, name=name, value=value)


def _precision(view: ConfigView, report: ConfigFindings) -> None:
    """DeepSpeedConfig._initialize_params and _do_error_check."""
    if view.precision("fp16") and view.precision("bf16"):
        report.add("fp16_and_bf16", ("bf16",))
    bf16 = "bf16" if isinstance(view.raw("bf16"), dict) or view.for_trainer else "bfloat16"
    for family, name in MASTER_KEYS:
        block = bf16 if family == "bf16" else family
        if not isinstance(view.raw(block), dict) or view.taken(block, name) is not True:
            continue
        if view.stage == 0:
            report.add("needs_stage.master_weights", (block, name), name=name)
        if name == "bf16_optimizer_states" and view.taken(block, "bf16_master_weights_and_grads") is False:
            report.add("needs_key.master_weights", (block, name), name=name)


def _allreduce(view: ConfigView, report: ConfigFindings) -> None:
    """DeepSpeedConfig._do_error_check: what gradient_allreduce_op "sum" does not go with."""
    value = view.raw("gradient_allreduce_op")
    if not isinstance(value, str) or value.lower() != "sum":
        return
    path = ("gradient_allreduce_op",)
    if view.stage == 3:
        report.add("needs_stage.sum", path)
    zenflow = view.raw(ZERO, "zenflow")
    if zenflow is not MISSING and zenflow is not None and zenflow != AUTO:
        report.add("needs_key.zenflow", path)
    if isinstance(view.raw("compile"), dict) and view.taken("compile", "deepcompile") is True:
        report.add("needs_key.deepcompile", path)


def _optimizer(view: ConfigView, report: ConfigFindings) -> None:
    """get_optimizer_params and _do_warning_check: params have to be an object, max_grad_norm a number."""
    block = view.raw("optimizer")
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        return
    params = block.get("params")
    if params is not None and not isinstance(params, dict):
        report.add("not_an_object", ("optimizer", "params"), value=shown(params))
    elif params and not isinstance(params.get("max_grad_norm", 0), int | float):
        path, raw = ("optimizer", "params", "max_grad_norm"), params["max_grad_norm"]
        report.add("wrong_type.number", path, name=path[-1], raw=shown(raw))


def _data(view: ConfigView, report: ConfigFindings) -> None:
    """deepspeed.runtime.data_pipeline.config: blocks that need a key once they are enabled, and int()."""
    at = ("data_efficiency", "data_sampling")
    curriculum = view.raw(*at, "curriculum_learning")
    if isinstance(curriculum, dict) and curriculum.get("enabled") and "curriculum_metrics" not in curriculum:
        report.add("needs_key.curriculum", (*at, "curriculum_learning"))
    batching = view.raw(*at, "dynamic_batching")
    if not isinstance(batching, dict):
        return
    if batching.get("enabled") and "max_tokens" not in batching:
        report.add("needs_key.max_tokens", (*at, "dynamic_batching"))
    names = ["min_batch_size", "max_batch_size", *(["max_tokens"] if batching.get("enabled") else [])]
    for name in names:
        if name in batching and not _is_int_to_python(batching[name]):
            report.add("wrong_type.whole", (*at, "dynamic_batching", name), name=name, value=shown(batching[name]))


def _is_int_to_python(value: Any) -> bool:
    try:
        int(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _rest(view: ConfigView, report: ConfigFindings) -> None:
    """autotuning's folders, data_types.keep_in_fp32_modules, torch_autocast's module names."""
    autotuning = view.raw("autotuning")
    for name in ("results_dir", "exps_dir"):
        if isinstance(autotuning, dict) and name in autotuning and not autotuning[name]:
            report.add("wrong_type.empty", ("autotuning", name), name=name)
    keep = view.raw("data_types", "keep_in_fp32_modules")
    listed = isinstance(keep, list) and all(isinstance(each, str) for each in keep)
    if keep is not MISSING and not listed and keep != AUTO:
        report.add("wrong_type.names", ("data_types", "keep_in_fp32_modules"), keep=shown(keep))
    modules = view.raw("torch_autocast", "lower_precision_safe_modules")
    if isinstance(modules, list) and not all(isinstance(each, str) for each in modules):
        report.add("wrong_type.modules", ("torch_autocast", "lower_precision_safe_modules"))
