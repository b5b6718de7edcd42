"""The blocks beside ZeRO: batch, optimizer, scheduler, offload's helpers and what other switches bring along."""

from math import sqrt
from typing import Any

from dsrun.engine_options import EngineOptions
from dsrun.zero.generate import presets
from dsrun.zero.generate.blocks import (
    TABLES,
    ConfigContext,
    FlatConfig,
    ReasonedValue,
    filled,
    fixed,
    precision_of,
    written,
)
from dsrun.zero.generate.presets import FROM_STEPS, error_after, memory_of_sum, takes_fp32_sum
from dsrun.zero.generate.spec import ZeroSpec
from dsrun.zero.view import AUTO

# An orthogonal update times 0.2 · sqrt(width) moves weights as far as Adam's (Moonlight, arXiv 2502.16982, 2.2).
MUON_SCALE = 0.2
WARMUP_STEPS = 100
WARMUP_SHARE = 0.03
SCHEDULERS = {"warmup": "WarmupLR", "linear": "WarmupDecayLR", "cosine": "WarmupCosineLR"}


def steps_of(spec: ZeroSpec) -> int | None:
    """Accumulation steps: as given, or as the batch sizes and the GPUs make them; None where they are not known."""
    sizes = (spec.global_batch_size, spec.micro_batch_size, spec.gpus)
    if spec.accumulation is not None or None in sizes:
        return spec.accumulation
    total, micro, gpus = (size or 1 for size in sizes)
    return total * spec.autotp * spec.sequence_parallel // (micro * gpus)


def sums_exactly(options: EngineOptions, stage: int, offload_optimizer: str, steps: int) -> bool:
    """Whether bf16 gradients of so many accumulation steps are summed in fp32 unless it is said how."""
    # With these, gradients take other ways through DeepSpeed, which have not been measured.
    other = options.bf16_master_weights or options.qgz or options.zenflow or options.super_offload
    able = steps >= FROM_STEPS and takes_fp32_sum(stage, offload_optimizer)
    return able and not other and options.grad_accum_dtype == "auto" and options.preset != "conservative"


def accumulation(case: ConfigContext) -> FlatConfig:
    """data_types.grad_accum_dtype."""
    spec, path = case.spec, "data_types.grad_accum_dtype"
    steps, chosen = steps_of(spec) or 1, precision_of(case).value
    if spec.grad_accum_dtype == "fp32":
        return {path: ReasonedValue("fp32", "asked by --grad-accum-dtype fp32")}
    other = spec.deepcompile or spec.optimizer == "muon" or spec.autotp > 1 or spec.autoep > 1
    sums = sums_exactly(spec, spec.stage, spec.offload_optimizer, steps)
    if other or not sums or chosen not in ("bf16", AUTO):
        return {}
    memory = memory_of_sum(case.facts.parameters, spec.gpus, spec.offload_optimizer)
    why = f"{steps} gradients are summed, and a bf16 sum is off by {error_after(steps)} (measured); takes {memory}"
    return {path: ReasonedValue("fp32", why)}


def optimizer_of(case: ConfigContext) -> str | None:
    """The optimizer that the file names, or None for the program's own."""
    spec = case.spec
    if spec.optimizer == "client":
        return None
    if spec.optimizer is None and case.trainer and spec.offload_optimizer == "none":
        return None
    return spec.optimizer or "adamw"


def optimizer(case: ConfigContext) -> FlatConfig:
    """The optimizer block and what belongs to it."""
    spec, kind = case.spec, optimizer_of(case)
    row = TABLES["optimizers"].get(kind, {})
    width = case.facts.hidden_size or presets.USUAL_WIDTH
    rate = float(f"{(spec.lr or usual('muon', 'lr')) * MUON_SCALE * sqrt(width):.1e}")
    names = {"kind": kind, "row": row, "offloaded": spec.offload_optimizer != "none", "width": width, "rate": rate}
    settings = {f"optimizer.params.{key}": _setting(case, kind or "", key) for key in row.get("settings", ())}
    return written("optimizer", case, **names) | settings | written("beside_settings", case, **names)


def _setting(case: ConfigContext, kind: str, key: str) -> ReasonedValue:
    value = getattr(case.spec, key)
    if value is not None:
        value = list(value) if isinstance(value, tuple) else value
        return ReasonedValue(value, f"asked by --{key.replace('_', '-')}")
    if case.trainer:
        return filled(f"optimizer.params.{key}")
    return ReasonedValue(usual(kind, key), "the optimizer's usual value")


def usual(kind: str | None, key: str) -> Any:
    """The number for a setting that is neither given nor filled by the Trainer."""
    return TABLES["optimizers"].get(kind or "", TABLES["optimizers"]["adamw"])["settings"][key]


def scheduler(case: ConfigContext) -> FlatConfig:
    spec = case.spec
    kind, steps = spec.scheduler, spec.warmup_steps
    if kind is None and not case.trainer:
        kind = "linear" if spec.total_steps else "warmup"
    if kind in (None, "none") or spec.optimizer == "client":
        return {}
    if steps is None and not case.trainer:
        steps = max(1, round(spec.total_steps * WARMUP_SHARE)) if spec.total_steps else WARMUP_STEPS
    rate = usual(spec.optimizer, "lr") if spec.lr is None else spec.lr
    names = {"kind": kind, "type": SCHEDULERS[kind or ""], "steps": steps, "rate": rate}
    return written("scheduler", case, **names) | fixed("warmup_type")


def extras(case: ConfigContext) -> FlatConfig:
    """Blocks that other switches bring along."""
    flat = fixed("zenflow") if case.spec.zenflow else FlatConfig()
    flat |= fixed("aio") if "nvme" in (case.spec.offload_optimizer, case.spec.offload_param) else {}
    return flat | written("extras", case)
