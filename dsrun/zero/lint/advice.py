"""What runs, but not as it is meant, beyond checks.toml: switches of stage 3, fp16's overflow, sums in bf16."""

from dsrun.findings.finding import Finding
from dsrun.findings.texts import text_of
from dsrun.messages import Message
from dsrun.models.families import family_of, overflow_in_fp16
from dsrun.zero.generate.presets import FROM_STEPS, error_after, memory_of_sum, takes_fp32_sum
from dsrun.zero.lint.codes import ConfigFindings
from dsrun.zero.schema import blocks
from dsrun.zero.view import AUTO, MISSING, ZERO, ConfigView

ONLY_STAGE_3 = ("zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_nontrainable_weights")
SUPER = "super_offload"


def check_advice(view: ConfigView, report: ConfigFindings) -> None:
    for check in (_stage_3_only, _half, _sums):
        check(view, report)


def _stage_3_only(view: ConfigView, report: ConfigFindings) -> None:
    zero = view.raw(ZERO)
    if not isinstance(zero, dict) or view.stage in (3, None):
        return
    for key in zero:
        name = blocks()[ZERO].spellings.get(key)
        if name is None or "deprecated" in blocks()[ZERO].keys[name]:
            continue
        if name.startswith("stage3_"):
            report.add("no_effect", (ZERO, key), stage=view.stage)
        elif name in ONLY_STAGE_3 and view.taken(ZERO, name) not in (False, MISSING, 0, 1):
            report.add("needs_stage", (ZERO, key), stage=view.stage)
    if isinstance(zero.get("offload_optimizer"), dict) and view.taken(f"{ZERO}.offload_optimizer", SUPER) is True:
        report.add("needs_stage", (ZERO, "offload_optimizer", SUPER), stage=view.stage)


def _half(view: ConfigView, report: ConfigFindings) -> None:
    if _is_on(view, "fp16") and view.model_type and family_of(view.model_type).overflows_in_fp16:
        overflow = Message(overflow_in_fp16("{family}"), family=view.model_type)
        found = Finding(level="warning", code="t5_fp16", message=overflow, fix=text_of("t5_fp16.bf16"))
        report.put(found, ("fp16", "enabled"))
    if _is_on(view, "bf16") and view.gpu is not None and not view.gpu.has_bf16:
        report.add("bf16_needs_ampere", ("bf16", "enabled"), name=view.gpu.name)


def _sums(view: ConfigView, report: ConfigFindings) -> None:
    """Gradients of many accumulation steps, summed in bf16."""
    steps = view.raw("gradient_accumulation_steps")
    if steps in (MISSING, AUTO) and view.flags is not None:
        steps = view.flags.values.get("gradient_accumulation_steps")
    place = view.offload("offload_optimizer") or "none"
    many = isinstance(steps, int) and steps >= FROM_STEPS
    unset = view.raw("data_types", "grad_accum_dtype") in (MISSING, None)
    if many and unset and _is_on(view, "bf16") and takes_fp32_sum(view.stage or 0, place):
        memory, path = memory_of_sum(None, None, place), ("gradient_accumulation_steps",)
        report.add("bf16_sum", path, steps=steps, error=error_after(steps), memory=memory)


def _is_on(view: ConfigView, name: str) -> bool:
    """Whether the file, or the flag behind its "auto" or missing block, switches the precision on."""
    if view.flags is not None and (view.is_auto(name, "enabled") or not view.has(name)):
        return bool(view.flags.values.get(name))
    return bool(view.precision(name))
