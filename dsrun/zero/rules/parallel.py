"""The rules about parallelism, compilation and observation."""

from __future__ import annotations

from math import prod

from dsrun.zero.rules.zero import CONFIG, ENGINE, Rule, RuleContext

PARALLEL_PASSES = frozenset({"autosp", "autotp"})


def _passes(a: RuleContext, *names: str) -> bool:
    return bool(set(names) & set(a.spec.compile_passes))


def _batch_differs(a: RuleContext) -> bool:
    """Whether the batch sizes that are given leave no number for the rest."""
    spec = a.spec
    ranks = spec.gpus and spec.gpus // (spec.autotp * spec.sequence_parallel)
    parts = (spec.micro_batch_size, spec.accumulation, ranks)
    made = prod(each or 1 for each in parts)
    total = spec.global_batch_size
    return total is not None and (total != made if all(parts) else total % made != 0)


PARALLEL_RULES = (
    Rule(
        when=lambda a: a.spec.autotp > 1 and a.spec.sequence_parallel > 1,
        message="--autotp {autotp} and --sequence-parallel {sequence_parallel}: both want the mesh of ranks",
        fix="leave out one of them",
        source=f"__init__.py (initialize) and {ENGINE} (_configure_tensor_parallel_states replaces the mpu)",
    ),
    Rule(
        when=lambda a: (
            a.spec.gpus is not None and a.spec.gpus % (a.spec.autotp * a.spec.sequence_parallel) != 0
        ),
        message="--gpus {gpus} does not divide by --autotp {autotp} and --sequence-parallel {sequence_parallel}",
        fix="use a number of GPUs that does",
        source="utils/groups.py (_init_tp_mesh_device), runtime/sequence_parallel/parallel_state_sp.py",
    ),
    Rule(
        when=lambda a: a.spec.gpus is not None and a.spec.gpus % a.spec.autoep != 0,
        message="--gpus {gpus} does not divide by --autoep {autoep}",
        fix="use a number of GPUs that does",
        source="module_inject/auto_ep_folding.py (build_folding_spec)",
    ),
    Rule(
        when=_batch_differs,
        message="--global-batch-size {global_batch_size} is not what --micro-batch-size, --accumulation and --gpus "
        "make",
        fix="leave out --accumulation",
        source=f"{CONFIG} (_batch_assertion)",
    ),
    Rule(
        when=lambda a: a.spec.target == "deepspeed" and a.spec.sequence_parallel > 1 and a.spec.gpus is None,
        message="--sequence-parallel {sequence_parallel} --for deepspeed needs to know how many GPUs there are",
        fix="add --gpus N",
        source="__init__.py (initialize reads sequence_parallel_size and data_parallel_size together)",
    ),
    Rule(
        when=lambda a: a.spec.autoep > 1 and a.spec.stage == 3 and bool(a.spec.qgz or a.spec.hpz > 1),
        message="--autoep {autoep}, --zero 3 and ZeRO++'s --qgz or --hpz do not go together",
        fix="leave out --qgz and --hpz",
        source=f"{ENGINE} (_validate_zero3_moe_compatibility)",
    ),
    Rule(
        when=lambda a: a.spec.autoep > 1 and a.spec.stage == 3 and a.spec.sequence_parallel > 1,
        message="--autoep {autoep}, --zero 3 and --sequence-parallel {sequence_parallel} do not go together",
        fix="use --zero 2",
        source=f"{ENGINE} (_validate_zero3_moe_compatibility)",
    ),
    Rule(
        when=lambda a: (
            a.spec.autoep > 1
            and a.spec.autotp > 1
            and (a.offloads or a.spec.offload_param != "none" or a.spec.deepcompile)
        ),
        message="--autoep with --autotp takes neither offload nor --deepcompile",
        fix="leave out --autotp",
        source="module_inject/auto_ep_folding.py (validate_folding_global)",
    ),
)

COMPILE_RULES = (
    Rule(
        when=lambda a: a.spec.deepcompile and a.spec.stage == 0 and not _passes(a, *PARALLEL_PASSES),
        message="--deepcompile and --zero 0: DeepCompile schedules ZeRO's communication",
        fix="use --zero 1, 2 or 3",
        source=f"{ENGINE} (get_deepcompile_backend falls back to torch.compile in silence)",
    ),
    Rule(
        when=lambda a: _passes(a, "autosp") and a.spec.stage > 1,
        message="--compile-passes autosp and --zero {stage}: the pass works with ZeRO 0 and 1",
        fix="use --zero 1",
        source=f"{ENGINE} (get_autosp_backend falls back to torch.compile in silence)",
    ),
    Rule(
        when=lambda a: _passes(a, "autotp") and a.spec.autotp == 1,
        message="--compile-passes autotp without --autotp",
        fix="add --autotp GPUS",
        source=f"{ENGINE} (get_autotp_backend falls back to torch.compile in silence)",
    ),
    Rule(
        when=lambda a: _passes(a, "autotp") and _passes(a, "autosp", "z1", "z3"),
        message="--compile-passes autotp stands alone",
        fix="leave out the other passes",
        source=f"{ENGINE} (get_deepspeed_compile_backend)",
    ),
    Rule(
        when=lambda a: (
            a.spec.stage != 3
            and (
                a.spec.compile_offload_activation
                or a.spec.compile_offload_states
                or a.spec.compile_offload_parameters
            )
        ),
        message="--compile-offload-activation, -states and -parameters are passes of ZeRO-3",
        fix="use --zero 3",
        source="compile/init_z3.py (compile/init_z1_and_2.py does not read them)",
    ),
    Rule(
        when=lambda a: a.spec.compile_offload_states and a.offloads,
        message="--compile-offload-states and --offload-optimizer {offload_optimizer} manage the same states",
        fix="leave out one of them",
        source="compile/init_z3.py (init_z3)",
    ),
    Rule(
        when=lambda a: (
            a.spec.compile_offload_activation
            + a.spec.compile_offload_states
            + (
                a.spec.compile_offload_parameters
                or (a.spec.deepcompile and a.spec.offload_optimizer == a.spec.offload_param == "cpu")
            )
            > 1
        ),
        message="--compile-offload-activation, -states and -parameters (which --offload-param cpu with "
        "--offload-optimizer cpu turns on) exclude one another",
        fix="choose one",
        source="compile/init_z3.py (init_z3)",
    ),
    Rule(
        when=lambda a: a.spec.deepcompile and a.spec.zenflow,
        message="--deepcompile and --zenflow both rearrange the step",
        fix="leave out one of them",
        source="compile/init_z3.py (init_z3 removes the hooks that ZenFlow rests on)",
    ),
    Rule(
        when=lambda a: a.spec.job_name is not None and a.spec.tensorboard is None and a.spec.csv is None,
        message="--job-name {job_name} names a folder of TensorBoard's or CSV files",
        fix="add --tensorboard DIR or --csv DIR",
        source="monitor/config.py (TensorBoardConfig, CSVConfig)",
    ),
)
