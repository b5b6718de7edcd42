"""Refuse what does not go together: what only flags show, then everything that `dsrun config check` finds wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from math import isfinite, prod
from typing import Any

from dsrun.errors import UsageError
from dsrun.findings import Finding
from dsrun.zero.generate.blocks import HardwareFacts
from dsrun.zero.generate.spec import STAGES, ZeroSpec, as_typed, flag_of, given
from dsrun.zero.lint.check import check as lint

REFUSED = frozenset({"bf16_needs_ampere", "conflict", "needs_stage", "offload_needs_stage"})
"""Findings that refuse what was asked also where DeepSpeed would go on without it."""

# Single options that belong to some stages only; without their key in the JSON no rule would see them.
STAGES_OF_OPTION = {
    **dict.fromkeys(("reduce_bucket_size", "overlap_comm", "offload_optimizer", "zenflow"), (1, 2, 3)),
    "allgather_bucket_size": (1, 2),
    **dict.fromkeys(("offload_param", "hpz", "qwz", "qgz", "super_offload"), (3,)),
}


@dataclass(frozen=True, kw_only=True)
class FlagRule:
    """Flags that do not go together and that the JSON does not show. `message` and `fix` may name fields in braces."""

    when: Callable[[ZeroSpec], bool]
    message: str
    fix: str
    source: str


def _rates(spec: ZeroSpec) -> bool:
    return any(each is not None for each in (spec.lr, spec.betas, spec.eps, spec.weight_decay))


def _uses_nvme(spec: ZeroSpec) -> bool:
    return "nvme" in (spec.offload_optimizer, spec.offload_param)


def _shared(spec: ZeroSpec) -> int:
    """Ranks that work on the same samples."""
    return max(1, spec.autotp * spec.sequence_parallel)


def _batch_differs(spec: ZeroSpec) -> bool:
    """Whether the batch sizes that are given leave no number for the rest."""
    parts = (spec.micro_batch_size, spec.accumulation, spec.gpus and spec.gpus // _shared(spec))
    made = prod(each or 1 for each in parts)
    total = spec.global_batch_size
    return total is not None and (total != made if all(parts) else total % made != 0)


FLAG_RULES = (
    FlagRule(
        when=lambda s: s.nvme_path is not None and not _uses_nvme(s),
        message="--nvme-path {nvme_path}: nothing is offloaded to NVMe",
        fix="add --offload-optimizer nvme or --offload-param nvme",
        source="runtime/zero/offload_config.py",
    ),
    FlagRule(
        when=lambda s: _uses_nvme(s) and not s.nvme_path,
        message="offload to nvme has no folder to write to",
        fix="add --nvme-path /local/nvme",
        source="runtime/zero/partition_parameters.py (Init._validate_remote_device)",
    ),
    FlagRule(
        when=lambda s: s.pin_memory is not None and s.offload_optimizer == s.offload_param == "none",
        message="--pin-memory: nothing is offloaded",
        fix="add --offload-optimizer cpu",
        source="runtime/zero/offload_config.py",
    ),
    FlagRule(
        when=lambda s: (
            s.target == "trainer"
            and _rates(s)
            and (s.optimizer == "client" or (s.optimizer is None and s.offload_optimizer == "none"))
        ),
        message="--lr, --betas, --eps and --weight-decay without --optimizer: the Trainer has its own",
        fix="add --optimizer adamw, or give the Trainer --learning_rate and the like",
        source="transformers: integrations/deepspeed.py (deepspeed_optim_sched)",
    ),
    FlagRule(
        when=lambda s: s.optimizer == "client" and _rates(s),
        message="--optimizer client: the program's own optimizer does not read --lr, --betas, --eps or --weight-decay",
        fix="remove them",
        source="runtime/engine.py (_configure_optimizer)",
    ),
    FlagRule(
        when=lambda s: s.optimizer == "client" and s.scheduler not in (None, "none"),
        message="--scheduler {scheduler} and --optimizer client: the program brings both, or neither",
        fix="remove --scheduler",
        source="accelerate: accelerator.py (_prepare_deepspeed)",
    ),
    FlagRule(
        when=lambda s: s.optimizer != "muon" and s.muon_lr is not None,
        message="--muon-lr is for Muon",
        fix="use --optimizer muon",
        source="runtime/engine.py (_configure_basic_optimizer)",
    ),
    FlagRule(
        when=lambda s: (
            s.betas is not None and (len(s.betas) != 2 or max(s.betas) >= 1 or s.optimizer in ("adagrad", "sgd"))
        ),
        message="--betas takes two numbers below 1, and belongs to Adam, Lion, LAMB and Muon",
        fix="write --betas 0.9 0.999",
        source="runtime/engine.py (_configure_basic_optimizer)",
    ),
    FlagRule(
        when=lambda s: s.eps is not None and s.optimizer in ("lion", "sgd"),
        message="--eps and --optimizer {optimizer}: it has none",
        fix="remove --eps",
        source="runtime/engine.py (_configure_basic_optimizer)",
    ),
    FlagRule(
        when=lambda s: s.target == "deepspeed" and s.scheduler in ("linear", "cosine") and s.total_steps is None,
        message="--scheduler {scheduler} has to know where it ends",
        fix="add --total-steps N",
        source="runtime/lr_schedules.py (WarmupDecayLR, WarmupCosineLR)",
    ),
    FlagRule(
        when=lambda s: (
            s.target == "trainer" and s.scheduler is None and (s.warmup_steps is not None or s.total_steps is not None)
        ),
        message="--warmup-steps and --total-steps without --scheduler: the Trainer has its own",
        fix="add --scheduler linear, or give the Trainer --warmup_steps and --max_steps",
        source="transformers: integrations/deepspeed.py (deepspeed_optim_sched)",
    ),
    FlagRule(
        when=lambda s: None not in (s.total_steps, s.warmup_steps) and (s.warmup_steps or 0) >= (s.total_steps or 0),
        message="--warmup-steps {warmup_steps} is not less than --total-steps {total_steps}",
        fix="warm up for fewer steps",
        source="runtime/lr_schedules.py (WarmupDecayLR)",
    ),
    FlagRule(
        when=lambda s: s.autotp > 1 and s.sequence_parallel > 1,
        message="--autotp {autotp} and --sequence-parallel {sequence_parallel} both arrange the ranks",
        fix="remove one of them",
        source="__init__.py (initialize) and runtime/engine.py (_configure_tensor_parallel_states replaces the mpu)",
    ),
    FlagRule(
        when=lambda s: s.gpus is not None and s.gpus % _shared(s) != 0,
        message="--gpus {gpus} is not a multiple of --autotp {autotp} and --sequence-parallel {sequence_parallel}",
        fix="use a number of GPUs that is",
        source="utils/groups.py (_init_tp_mesh_device), runtime/sequence_parallel/parallel_state_sp.py",
    ),
    FlagRule(
        when=_batch_differs,
        message="--global-batch-size {global_batch_size} is not what --micro-batch-size, --accumulation and --gpus "
        "make",
        fix="remove --accumulation",
        source="runtime/config.py (_batch_assertion)",
    ),
    FlagRule(
        when=lambda s: s.target == "deepspeed" and s.sequence_parallel > 1 and s.gpus is None,
        message="--sequence-parallel {sequence_parallel} --for deepspeed needs to know how many GPUs there are",
        fix="add --gpus N",
        source="__init__.py (initialize reads sequence_parallel_size and data_parallel_size together)",
    ),
    FlagRule(
        when=lambda s: s.autoep > 1 and s.stage == 3 and s.sequence_parallel > 1,
        message="--autoep {autoep}, --zero 3 and --sequence-parallel {sequence_parallel} do not go together",
        fix="use --zero 2",
        source="runtime/engine.py (_validate_zero3_moe_compatibility)",
    ),
)


def check_flags(spec: ZeroSpec) -> None:
    """Raise UsageError for a value that a flag does not take, and for the first flags that do not go together."""
    if spec.stage not in STAGES:
        raise UsageError(f"ZeRO stage {spec.stage} does not exist", fix="choose --zero 0, 1, 2 or 3")
    for each, value in given(spec):
        _check_value(each.name, each.metadata, value)
        stages = STAGES_OF_OPTION.get(each.name)
        if stages and spec.stage not in stages:
            listed = " or ".join(map(str, stages))
            raise UsageError(f"{flag_of(each.name)} does nothing under --zero {spec.stage}", fix=f"use --zero {listed}")
    for rule in FLAG_RULES:
        if rule.when(spec):
            raise UsageError(rule.message.format(**asdict(spec)), fix=rule.fix.format(**asdict(spec)))


def _check_value(name: str, meta: Mapping[str, Any], value: Any) -> None:
    """One option by itself: its choices and its bounds."""
    for each in value if isinstance(value, tuple) else (value,):
        if meta["choices"] and each not in meta["choices"]:
            raise UsageError(f"{flag_of(name)}: {each!r} is not one of {', '.join(meta['choices'])}")
        if isinstance(each, float) and not isfinite(each):
            raise UsageError(f"{flag_of(name)}: {each} is not a number that JSON can hold")
        if meta["least"] is not None and not each >= meta["least"]:
            raise UsageError(f"{flag_of(name)}: {each} is less than {meta['least']}")
        if meta["most"] is not None and each > meta["most"]:
            raise UsageError(f"{flag_of(name)}: {each} is more than {meta['most']}")


def check_config(config: Mapping[str, Any], spec: ZeroSpec, facts: HardwareFacts) -> list[Finding]:
    """All findings of the linter. Raises UsageError for one on which DeepSpeed stops, or that voids a setting."""
    findings = lint(
        json.dumps(config),
        target="deepspeed" if spec.target == "deepspeed" else "trainer",
        world_size=spec.gpus,
        model_type=facts.model_type,
        gpu=facts.gpu,
    )
    for each in findings:
        if each.level == "error" or each.code in REFUSED:
            asked = ", ".join(as_typed(option.name, value) for option, value in given(spec) if option.name != "gpus")
            raise UsageError(f"{each.message} ({asked})" if asked else each.message, fix=each.fix)
    return findings
