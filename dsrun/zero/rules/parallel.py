"""The rules about parallelism and compilation."""

from __future__ import annotations

from dsrun.zero.rules.rule import ENGINE, Rule, has_zenflow, is_on, number, offloads_optimizer
from dsrun.zero.view import ZERO, ConfigView

TENSOR = "tensor_parallel.autotp_size"
EXPERT = "expert_parallel.autoep_size"
SEQUENCE = "sequence_parallel_size"
COMPILED_OFFLOADS = ("offload_activation", "offload_opt_states", "offload_parameters")
FOLDING = "module_inject/auto_ep_folding.py"


def _shared(view: ConfigView) -> int:
    """Ranks that work on the same samples."""
    return int(max(1, number(view, TENSOR, 1)) * max(1, number(view, SEQUENCE, 1)))


def _has_experts(view: ConfigView) -> bool:
    return is_on(view, "expert_parallel.enabled") and number(view, EXPERT, 1) > 1


def _compiles(view: ConfigView) -> bool:
    return is_on(view, "compile.deepcompile")


def _passes(view: ConfigView, *names: str) -> bool:
    listed = view.raw("compile", "passes")
    return _compiles(view) and isinstance(listed, list) and any(name in listed for name in names)


def _moves_parameters(view: ConfigView) -> bool:
    """The engine turns the pass on for parameters and optimizer in host memory."""
    both = view.offload("offload_param") == view.offload("offload_optimizer") == "cpu"
    return is_on(view, "compile.offload_parameters") or both


def _compiled_offload(key: str) -> Rule:
    return Rule(
        when=lambda v: _compiles(v) and is_on(v, f"compile.{key}") and v.stage in (0, 1, 2),
        key=f"compile.{key}",
        message=f"{key} is a pass of stage 3; stage {{zero_optimization.stage}} ignores it",
        fix='write "stage": 3',
        source="compile/init_z3.py (compile/init_z1_and_2.py does not read it)",
        level="warning",
    )


PARALLEL_RULES = (
    Rule(
        when=lambda v: number(v, TENSOR, 1) > 1 and number(v, SEQUENCE, 1) > 1,
        key=SEQUENCE,
        message="sequence_parallel_size and autotp_size both arrange the ranks; DeepSpeed keeps one of the two",
        fix="remove one of them",
        source=f"__init__.py (initialize) and {ENGINE} (_configure_tensor_parallel_states replaces the mpu)",
        level="warning",
    ),
    Rule(
        when=lambda v: v.world_size is not None and _shared(v) > 1 and v.world_size % _shared(v) != 0,
        key=TENSOR,
        message="the number of GPUs is not a multiple of autotp_size and sequence_parallel_size",
        fix="use a number of GPUs that is",
        source="utils/groups.py (_init_tp_mesh_device), runtime/sequence_parallel/parallel_state_sp.py",
    ),
    Rule(
        when=lambda v: _has_experts(v) and v.world_size is not None and v.world_size % number(v, EXPERT, 1) != 0,
        key=EXPERT,
        message="the number of GPUs is not a multiple of autoep_size {expert_parallel.autoep_size}",
        fix="use a number of GPUs that is",
        source=f"{FOLDING} (build_folding_spec)",
    ),
    Rule(
        when=lambda v: (
            _has_experts(v)
            and v.stage == 3
            and (is_on(v, f"{ZERO}.zero_quantized_gradients") or number(v, f"{ZERO}.zero_hpz_partition_size", 1) > 1)
        ),
        key=EXPERT,
        message="AutoEP at stage 3 works neither with zero_quantized_gradients (qgZ) nor with zero_hpz_partition_size",
        fix="remove both",
        source=f"{ENGINE} (_validate_zero3_moe_compatibility)",
    ),
    Rule(
        when=lambda v: _has_experts(v) and v.stage == 3 and number(v, SEQUENCE, 1) > 1,
        key=EXPERT,
        message="AutoEP at stage 3 does not work with sequence parallelism",
        fix='write "stage": 2',
        source=f"{ENGINE} (_validate_zero3_moe_compatibility)",
    ),
    Rule(
        when=lambda v: (
            _has_experts(v)
            and number(v, TENSOR, 1) > 1
            and (offloads_optimizer(v) or v.offload("offload_param") in ("cpu", "nvme") or _compiles(v))
        ),
        key=EXPERT,
        message="AutoEP with AutoTP works neither with offload nor with DeepCompile",
        fix="remove tensor_parallel",
        source=f"{FOLDING} (validate_folding_global)",
    ),
)

COMPILE_RULES = (
    Rule(
        when=lambda v: _compiles(v) and v.stage == 0 and not _passes(v, "autosp", "autotp"),
        key="compile.deepcompile",
        message="DeepCompile schedules ZeRO's communication, and the stage is 0: DeepSpeed falls back to torch.compile",
        fix='write "stage": 1, 2 or 3',
        source=f"{ENGINE} (get_deepcompile_backend)",
        level="warning",
    ),
    Rule(
        when=lambda v: _passes(v, "autosp") and v.stage in (2, 3),
        key="compile.passes",
        message="the pass autosp works at stages 0 and 1: at stage {zero_optimization.stage} DeepSpeed falls back to "
        "torch.compile",
        fix='write "stage": 1',
        source=f"{ENGINE} (get_autosp_backend)",
        level="warning",
    ),
    Rule(
        when=lambda v: _passes(v, "autotp") and number(v, TENSOR, 1) <= 1,
        key="compile.passes",
        message="the pass autotp needs tensor parallelism: without it DeepSpeed falls back to torch.compile",
        fix='add "tensor_parallel": {"autotp_size": 2}',
        source=f"{ENGINE} (get_autotp_backend)",
        level="warning",
    ),
    Rule(
        when=lambda v: _passes(v, "autotp") and _passes(v, "autosp", "z1", "z3"),
        key="compile.passes",
        message="the pass autotp does not work with other passes",
        fix="remove the others",
        source=f"{ENGINE} (get_deepspeed_compile_backend)",
    ),
    *map(_compiled_offload, COMPILED_OFFLOADS),
    Rule(
        when=lambda v: (
            _compiles(v) and v.stage == 3 and is_on(v, "compile.offload_opt_states") and offloads_optimizer(v)
        ),
        key="compile.offload_opt_states",
        message="offload_opt_states and offload_optimizer manage the same states",
        fix="remove one of them",
        source="compile/init_z3.py (init_z3)",
    ),
    Rule(
        when=lambda v: (
            _compiles(v)
            and v.stage == 3
            and is_on(v, "compile.offload_activation") + is_on(v, "compile.offload_opt_states") + _moves_parameters(v)
            > 1
        ),
        key="compile.offload_activation",
        message="offload_activation, offload_opt_states and offload_parameters (which offload_param and "
        "offload_optimizer on the CPU turn on) exclude one another",
        fix="keep one of them",
        source="compile/init_z3.py (init_z3)",
    ),
    Rule(
        when=lambda v: _compiles(v) and has_zenflow(v),
        key="compile.deepcompile",
        message="DeepCompile removes the hooks that zenflow rests on",
        fix="remove one of them",
        source="compile/init_z3.py (init_z3)",
        level="warning",
    ),
)
