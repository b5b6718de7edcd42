"""The number format of a job against the GPUs and the model: bf16 where it is computed, fp16 where it overflows."""

from collections.abc import Iterator

from dsrun.doctor.job.zero_config import config_of
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.errors import DsrunError
from dsrun.findings.finding import Finding
from dsrun.findings.texts import finding_of, text_of
from dsrun.models.families import family_of, model_type_of
from dsrun.recipe.precision import BF16_FROM, decide_precision
from dsrun.system.host import cpu_bf16


def look(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """What `dsrun train` would refuse, or choose in place of what is fast."""
    recipe = target.recipe
    if recipe is None or not target.runs_on(machine):
        return
    gpus = machine.gpus
    on_gpu = bool(gpus) and not recipe.hf.get("use_cpu")
    slow = [gpu for gpu in gpus if gpu.capability < BF16_FROM]
    able = not slow if on_gpu else cpu_bf16(machine.root)
    kind = recipe.spec.model_type or model_type_of(recipe.spec.model) or ""
    try:
        chosen = decide_precision(
            recipe.hf,
            model_type=kind,
            bf16_supported=able,
            device="cuda" if on_gpu else "cpu",
            deepspeed=config_of(target) if recipe.hf.get("deepspeed") else None,
            force=recipe.spec.force,
        )
    except DsrunError as error:
        yield Finding(level="error", code="precision", message=error.message, fix=error.fix or "")
        return
    overflows = family_of(kind).overflows_in_fp16
    if chosen == "fp32" and on_gpu and slow:
        fix = text_of("precision_fp32.newer", kind=kind) if overflows else text_of("precision_fp32.faster")
        yield finding_of("precision_fp32", name=slow[0].name, fix=fix)
    elif overflows and chosen == "fp16":
        yield finding_of("precision_overflow", kind=kind)
    elif on_gpu:
        yield finding_of("precision.gpu", precision=chosen, device=gpus[0].name)
    else:
        yield finding_of("precision.cpu", precision=chosen)
