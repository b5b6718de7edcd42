"""What DeepSpeed reads without a word and then fails on: when it builds the engine, or in the first steps.

Each of these was seen on a real engine (tests/integration/test_lint_engines.py); the comments name the place.
"""

from __future__ import annotations

from typing import Any

from dsrun.messages import Message
from dsrun.zero.lint.codes import Findings
from dsrun.zero.schema import blocks, nearest, shown
from dsrun.zero.view import AUTO, MISSING, ZERO, ConfigView

LATE = Message("DeepSpeed stops when it builds the engine")
LOG_LEVELS = ("debug", "info", "warning", "error", "critical")


def check_engine(view: ConfigView, report: Findings) -> None:
    """Errors that come after reading."""
    for check in (_numbers, _log_level, _dtypes, _clipping, _stages, _nvme, _zenflow):
        check(view, report)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _numbers(view: ConfigView, report: Findings) -> None:
    """Keys that DeepSpeed computes with."""
    clipping = view.raw("gradient_clipping")
    filled = view.for_trainer and clipping == AUTO
    if clipping is not MISSING and not _is_number(clipping) and not filled:
        message = Message(
            "gradient_clipping is {clipping}, not a number: the first step fails", clipping=shown(clipping)
        )
        report.error("breaks_later", ("gradient_clipping",), message, Message('write "gradient_clipping": 1.0'))
    # Under the Trainer accelerate sets steps_per_print to infinity.
    steps = view.raw("steps_per_print")
    odd = steps not in (MISSING, None) and (not _is_number(steps) or not steps)
    if odd and not view.for_trainer:
        message = Message("steps_per_print is {steps}, not a number above 0: the first step fails", steps=shown(steps))
        report.error("breaks_later", ("steps_per_print",), message, Message("write null to print nothing"))
    shared = view.raw("sequence_parallel_size")
    if shared is not MISSING and (not _is_number(shared) or shared <= 0):
        message = Message(
            "sequence_parallel_size is {shared}, and DeepSpeed divides the number of ranks by it", shared=shown(shared)
        )
        report.error("breaks_later", ("sequence_parallel_size",), message)
    step = view.raw("flops_profiler", "profile_step")
    if view.raw("flops_profiler", "enabled") is True and step is not MISSING and not _is_number(step):
        message = Message("profile_step is {step}, not a number: the first step fails", step=shown(step))
        report.error("breaks_later", ("flops_profiler", "profile_step"), message)


def _log_level(view: ConfigView, report: Findings) -> None:
    """deepspeed.utils.logging.set_log_level_from_string."""
    level = view.raw("log_level")
    if level in (MISSING, None) or (view.for_trainer and level == AUTO):
        return
    if not isinstance(level, str) or level.lower() not in LOG_LEVELS:
        match = nearest(str(level), LOG_LEVELS)
        message = Message(
            "log_level is {level}, not one of {log_levels}: {late}",
            level=shown(level),
            log_levels=", ".join(LOG_LEVELS),
            late=LATE,
        )
        report.error(
            "breaks_later", ("log_level",), message, Message('did you mean "{match}"?', match=match) if match else ""
        )


def _dtypes(view: ConfigView, report: Findings) -> None:
    """DtypeEnum in DeepSpeedEngine.get_data_types, and the mixes that it refuses without ZeRO."""
    known = blocks()["torch_autocast"].keys["dtype"]["choices"]
    for name in ("grad_accum_dtype", "param_dtype"):
        value, path = view.raw("data_types", name), ("data_types", name)
        if value in (MISSING, None) or (view.for_trainer and value == AUTO):
            continue
        if not isinstance(value, str) or value not in known:
            fix = Message("write fp32, bf16 or fp16, or leave it out")
            report.error(
                "breaks_later",
                path,
                Message("{name} is {value}, which is not a dtype: {late}", name=name, value=shown(value), late=LATE),
                fix,
            )
    _param_dtype(view, report)
    accumulated = _family(view.raw("data_types", "grad_accum_dtype"))
    model = "bf16" if view.precision("bf16") else "fp16" if view.precision("fp16") else None
    if view.stage == 0 and accumulated and model and accumulated != model and not view.has("torch_autocast"):
        path = ("data_types", "grad_accum_dtype")
        message = Message(
            "without ZeRO a {model} model cannot add up its gradients in {accumulated}: {late}",
            model=model,
            accumulated=accumulated,
            late=LATE,
        )
        report.error("breaks_later", path, message, Message('use "zero_optimization": {"stage": 1}'))


def _param_dtype(view: ConfigView, report: Findings) -> None:
    """DeepSpeedEngine._assert_valid_mixed_precision_config: it has to say what fp16 and bf16 say."""
    requested = _family(view.raw("data_types", "param_dtype"))
    fp16, bf16 = view.precision("fp16"), view.precision("bf16")
    if requested is None or fp16 is None or bf16 is None:
        return
    model = "fp16" if fp16 else "bf16" if bf16 else "fp32"
    if requested != model:
        path = ("data_types", "param_dtype")
        message = Message(
            "param_dtype is {requested}, but the model trains in {model}: {late}",
            requested=requested,
            model=model,
            late=LATE,
        )
        report.error("breaks_later", path, message, Message('leave it out, or write "{model}"', model=model))


def _family(dtype: Any) -> str | None:
    """fp16, bf16 or fp32 for any of a dtype's names."""
    names = {"half": "fp16", "float16": "fp16", "bfloat16": "bf16", "float": "fp32", "float32": "fp32"}
    word = str(dtype).removeprefix("torch.")
    return names.get(word, word if word in ("fp16", "bf16", "fp32") else None)


def _clipping(view: ConfigView, report: Findings) -> None:
    """compute_grad_norm=false requires gradient_clipping=0 (DeepSpeedZeroOptimizer)."""
    clipping = view.raw("gradient_clipping")
    known = 1.0 if clipping is MISSING else clipping
    if view.stage in (1, 2) and view.taken(ZERO, "compute_grad_norm") is False and _is_number(known) and known > 0:
        path = view.spelled(ZERO, "compute_grad_norm")
        message = Message(
            "compute_grad_norm: false goes with gradient_clipping 0 only, not {known}: {late}",
            known=shown(known),
            late=LATE,
        )
        report.error("breaks_later", path, message, Message('write "gradient_clipping": 0'))


def _stages(view: ConfigView, report: Findings) -> None:
    """Switches that the engine refuses at some stages."""
    stage = view.stage
    if isinstance(view.raw(ZERO), dict) and stage and view.taken(ZERO, "legacy_stage1") is True:
        report.error(
            "breaks_later",
            (ZERO, "legacy_stage1"),
            Message("legacy_stage1 was removed: {late}", late=LATE),
            Message("leave it out"),
        )
    managed = view.raw("managed_gradient_accumulation")
    overlap = isinstance(view.raw(ZERO), dict) and view.taken(ZERO, "overlap_comm") is True
    if managed is False and stage in (0, 1) and overlap:
        path = ("managed_gradient_accumulation",)
        report.error("breaks_later", path, Message("false goes with overlap_comm at stage 2 only: {late}", late=LATE))


def _nvme(view: ConfigView, report: Findings) -> None:
    """Stage 3 joins the path of the swap folder without asking whether there is one."""
    for what in ("offload_optimizer", "offload_param"):
        if view.stage != 3 or view.offload(what) != "nvme":
            continue
        if view.taken(f"{ZERO}.{what}", "nvme_path") in (None, "none"):
            message = Message("{what} goes to NVMe, but has no folder there: {late}", what=what, late=LATE)
            report.error("nvme_path_missing", (ZERO, what), message, Message('add "nvme_path": "/local_nvme"'))


def _zenflow(view: ConfigView, report: Findings) -> None:
    """ZenFlow lives in the optimizer that runs on the host."""
    zenflow = view.raw(ZERO, "zenflow")
    if isinstance(zenflow, dict) and view.stage in (1, 2) and view.offload("offload_optimizer") == "none":
        message = Message("zenflow needs an offloaded optimizer: {late}", late=LATE)
        report.error("breaks_later", (ZERO, "zenflow"), message, Message('add "offload_optimizer": {"device": "cpu"}'))
