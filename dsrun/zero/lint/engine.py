"""What DeepSpeed reads without a word and then fails on: when it builds the engine, or in the first steps.

Each of these was seen on a real engine (tests/integration/test_lint_engines.py); the comments name the place.
"""

from typing import Any

from dsrun.errors import nearest
from dsrun.findings.texts import text_of
from dsrun.zero.lint.codes import ConfigFindings
from dsrun.zero.schema import blocks, shown
from dsrun.zero.view import AUTO, MISSING, ZERO, ConfigView

LOG_LEVELS = ("debug", "info", "warning", "error", "critical")


def check_engine(view: ConfigView, report: ConfigFindings) -> None:
    """Errors that come after reading."""
    for check in (_numbers, _log_level, _dtypes, _clipping, _stages, _nvme, _zenflow):
        check(view, report)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _numbers(view: ConfigView, report: ConfigFindings) -> None:
    """Keys that DeepSpeed computes with."""
    clipping = view.raw("gradient_clipping")
    filled = view.for_trainer and clipping == AUTO
    if clipping is not MISSING and not _is_number(clipping) and not filled:
        report.add("breaks_later.clipping", ("gradient_clipping",), clipping=shown(clipping))
    # Under the Trainer accelerate sets steps_per_print to infinity.
    steps = view.raw("steps_per_print")
    odd = steps not in (MISSING, None) and (not _is_number(steps) or not steps)
    if odd and not view.for_trainer:
        report.add("breaks_later.printing", ("steps_per_print",), steps=shown(steps))
    shared = view.raw("sequence_parallel_size")
    if shared is not MISSING and (not _is_number(shared) or shared <= 0):
        report.add("breaks_later.sequence", ("sequence_parallel_size",), shared=shown(shared))
    step = view.raw("flops_profiler", "profile_step")
    if view.raw("flops_profiler", "enabled") is True and step is not MISSING and not _is_number(step):
        report.add("breaks_later.profile_step", ("flops_profiler", "profile_step"), step=shown(step))


def _log_level(view: ConfigView, report: ConfigFindings) -> None:
    """deepspeed.utils.logging.set_log_level_from_string."""
    level = view.raw("log_level")
    if level in (MISSING, None) or (view.for_trainer and level == AUTO):
        return
    if not isinstance(level, str) or level.lower() not in LOG_LEVELS:
        match = nearest(str(level), LOG_LEVELS)
        fix = text_of("repair.quoted", match=match) if match else None
        names = ", ".join(LOG_LEVELS)
        report.add("breaks_later.log_level", ("log_level",), fix=fix, value=shown(level), log_levels=names)


def _dtypes(view: ConfigView, report: ConfigFindings) -> None:
    """DtypeEnum in DeepSpeedEngine.get_data_types, and the mixes that it refuses without ZeRO."""
    known = blocks()["torch_autocast"].keys["dtype"]["choices"]
    for name in ("grad_accum_dtype", "param_dtype"):
        value = view.raw("data_types", name)
        if value in (MISSING, None) or (view.for_trainer and value == AUTO):
            continue
        if not isinstance(value, str) or value not in known:
            report.add("breaks_later.dtype", ("data_types", name), name=name, value=shown(value))
    _param_dtype(view, report)
    accumulated = _family(view.raw("data_types", "grad_accum_dtype"))
    model = "bf16" if view.precision("bf16") else "fp16" if view.precision("fp16") else None
    if view.stage == 0 and accumulated and model and accumulated != model and not view.has("torch_autocast"):
        report.add("breaks_later.sums", ("data_types", "grad_accum_dtype"), model=model, accumulated=accumulated)


def _param_dtype(view: ConfigView, report: ConfigFindings) -> None:
    """DeepSpeedEngine._assert_valid_mixed_precision_config: it has to say what fp16 and bf16 say."""
    requested = _family(view.raw("data_types", "param_dtype"))
    fp16, bf16 = view.precision("fp16"), view.precision("bf16")
    if requested is None or fp16 is None or bf16 is None:
        return
    model = "fp16" if fp16 else "bf16" if bf16 else "fp32"
    if requested != model:
        report.add("breaks_later.param_dtype", ("data_types", "param_dtype"), requested=requested, model=model)


def _family(dtype: Any) -> str | None:
    """fp16, bf16 or fp32 for any of a dtype's names."""
    names = {"half": "fp16", "float16": "fp16", "bfloat16": "bf16", "float": "fp32", "float32": "fp32"}
    word = str(dtype).removeprefix("torch.")
    return names.get(word, word if word in ("fp16", "bf16", "fp32") else None)


def _clipping(view: ConfigView, report: ConfigFindings) -> None:
    """compute_grad_norm=false requires gradient_clipping=0 (DeepSpeedZeroOptimizer)."""
    clipping = view.raw("gradient_clipping")
    known = 1.0 if clipping is MISSING else clipping
    if view.stage in (1, 2) and view.taken(ZERO, "compute_grad_norm") is False and _is_number(known) and known > 0:
        report.add("breaks_later.grad_norm", view.spelled(ZERO, "compute_grad_norm"), known=shown(known))


def _stages(view: ConfigView, report: ConfigFindings) -> None:
    """Switches that the engine refuses at some stages."""
    stage = view.stage
    if isinstance(view.raw(ZERO), dict) and stage and view.taken(ZERO, "legacy_stage1") is True:
        report.add("breaks_later.legacy_stage1", (ZERO, "legacy_stage1"))
    managed = view.raw("managed_gradient_accumulation")
    overlap = isinstance(view.raw(ZERO), dict) and view.taken(ZERO, "overlap_comm") is True
    if managed is False and stage in (0, 1) and overlap:
        report.add("breaks_later.overlap", ("managed_gradient_accumulation",))


def _nvme(view: ConfigView, report: ConfigFindings) -> None:
    """Stage 3 joins the path of the swap folder without asking whether there is one."""
    for what in ("offload_optimizer", "offload_param"):
        if view.stage != 3 or view.offload(what) != "nvme":
            continue
        if view.taken(f"{ZERO}.{what}", "nvme_path") in (None, "none"):
            report.add("nvme_path_missing", (ZERO, what), what=what)


def _zenflow(view: ConfigView, report: ConfigFindings) -> None:
    """ZenFlow lives in the optimizer that runs on the host."""
    zenflow = view.raw(ZERO, "zenflow")
    if isinstance(zenflow, dict) and view.stage in (1, 2) and view.offload("offload_optimizer") == "none":
        report.add("breaks_later.zenflow", (ZERO, "zenflow"))
