"""Refuse what does not go together, by name and with the way out."""

from __future__ import annotations

from dataclasses import asdict
from math import isfinite
from typing import Any

from dsrun.errors import UsageError
from dsrun.hardware.gpus import GpuModel
from dsrun.zero.generate.options import STAGES
from dsrun.zero.generate.spec import ZeroSpec, flag_of, given, options
from dsrun.zero.rules.optimizer import OPTIMIZER_RULES
from dsrun.zero.rules.parallel import COMPILE_RULES, PARALLEL_RULES
from dsrun.zero.rules.precision import PRECISION_RULES
from dsrun.zero.rules.zero import OFFLOAD_RULES, ZENFLOW_RULES, ZEROPP_RULES, Rule, RuleContext

RULES: tuple[Rule, ...] = (
    *OFFLOAD_RULES,
    *ZENFLOW_RULES,
    *ZEROPP_RULES,
    *PRECISION_RULES,
    *OPTIMIZER_RULES,
    *PARALLEL_RULES,
    *COMPILE_RULES,
)
# Groups and single options that belong to some stages only; the rest goes with all of them.
STAGES_OF_GROUP = {"zero": (1, 2, 3), "zero3": (3,), "zeropp": (3,), "zenflow": (1, 2, 3)}
STAGES_OF_OPTION = {
    "allgather_bucket_size": (1, 2),
    "round_robin_gradients": (1, 2),
    "multi_rank_bucket_allreduce": (1, 2),
    "allgather_partitions": (1, 2),
    "parameter_alignment": (1, 2),
    "compute_grad_norm": (1, 2),
    "ignore_unused_parameters": (1, 2),
    "muon_momentum_in_memory": (3,),
}


def check(spec: ZeroSpec, precision: str, gpu: GpuModel | None = None) -> None:
    """Raise UsageError for the first thing in `spec` that DeepSpeed does not have or that excludes another.

    `precision` is the format that follows from the spec: bf16, fp16, fp32, or auto for the Trainer's choice.
    """
    if spec.stage not in STAGES:
        raise UsageError(f"ZeRO stage {spec.stage} does not exist", fix="choose --zero 0, 1, 2 or 3")
    for each, value in given(spec):
        _check_value(each.name, each.metadata, value)
    for each, _ in given(spec):
        _check_company(spec, each.name, each.metadata)
    if gpu is not None and precision == "bf16" and not gpu.has_bf16:
        raise UsageError(
            f"--precision bf16 and --gpu {spec.gpu}: {gpu.name} has no bf16",
            fix="use --precision fp16 or fp32",
        )
    ask = RuleContext(spec=spec, precision=precision)
    for rule in RULES:
        if rule.when(ask):
            words = {**asdict(spec), "precision": precision}
            raise UsageError(rule.message.format(**words), fix=rule.fix.format(**words))


def _check_value(name: str, meta: Any, value: Any) -> None:
    """One option by itself: its choices and its bounds."""
    for each in value if isinstance(value, tuple) else (value,):
        if meta["choices"] and each not in meta["choices"]:
            raise UsageError(f"{flag_of(name)}: {each!r} is not one of {', '.join(meta['choices'])}")
        if isinstance(each, float) and not isfinite(each):
            raise UsageError(f"{flag_of(name)}: {each} is no number that JSON can hold")
        if meta["least"] is not None and not each >= meta["least"]:
            raise UsageError(f"{flag_of(name)}: {each} is less than {meta['least']}")
        if meta["most"] is not None and each > meta["most"]:
            raise UsageError(f"{flag_of(name)}: {each} is more than {meta['most']}")


def _check_company(spec: ZeroSpec, name: str, meta: Any) -> None:
    """One option beside the stage and the option it needs."""
    needed = meta["needs"]
    if needed and getattr(spec, needed) in (options()[needed].default, False):
        raise UsageError(
            f"{flag_of(name)} does nothing without {flag_of(needed)}", fix=f"add {flag_of(needed)}"
        )
    stages = STAGES_OF_OPTION.get(name) or STAGES_OF_GROUP.get(meta["group"])
    if name != "stage" and stages and spec.stage not in stages:
        listed = " or ".join(map(str, stages))
        raise UsageError(
            f"{flag_of(name)} does nothing under --zero {spec.stage}", fix=f"use --zero {listed}"
        )
