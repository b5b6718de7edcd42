"""The number format of a job against the GPUs and the model: bf16 where it is computed, fp16 where it overflows."""

from __future__ import annotations

from collections.abc import Iterator

from dsrun.doctor.check import Check, failure, fine, warning
from dsrun.doctor.job.settings import NEEDS_JOB
from dsrun.doctor.job.zero_config import config_of
from dsrun.doctor.machine import Machine, Target
from dsrun.errors import DsrunError
from dsrun.findings.finding import Finding
from dsrun.messages import Message
from dsrun.models.families import family_of, model_type_of
from dsrun.recipe.precision import decide_precision
from dsrun.system.host import cpu_bf16

_FIRST_BF16 = (8, 0)


def look(machine: Machine, target: Target) -> Iterator[Finding]:
    """What `dsrun train` would refuse, or choose in place of what is fast."""
    recipe = target.recipe
    if recipe is None or not target.runs_on(machine):
        return
    gpus = machine.gpus
    on_gpu = bool(gpus) and not recipe.hf.get("use_cpu")
    slow = [gpu for gpu in gpus if gpu.capability < _FIRST_BF16]
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
        yield failure("precision", error.message, error.fix or "")
        return
    if chosen == "fp32" and on_gpu and slow:
        if family_of(kind).overflows_in_fp16:
            fix = Message(
                "use a GPU of compute capability 8.0 or above (A100, L4, RTX 30 and later): {kind} overflows in fp16",
                kind=kind,
            )
        else:
            fix = Message("--fp16 is twice as fast on this GPU")
        message = Message(
            "{name} does not compute in bf16, so the job trains in fp32, with twice the memory", name=slow[0].name
        )
        yield warning("precision_fp32", message, fix)
        return
    if family_of(kind).overflows_in_fp16 and chosen == "fp16":
        yield warning(
            "precision_overflow",
            Message("{kind} models overflow in fp16: the loss becomes NaN", kind=kind),
            Message("--bf16, or --bf16 false"),
        )
        return
    yield fine(
        "precision",
        Message("trains in {precision} on {device}", precision=chosen, device=gpus[0].name)
        if on_gpu
        else Message("trains in {precision} on the CPU", precision=chosen),
    )


PRECISION = Check(
    "precision",
    "bf16 and fp16",
    look,
    needs=NEEDS_JOB,
    finds="bf16 on a GPU that does not compute in it; fp16 with T5 and others that overflow in it",
)
