"""Which options do not go together, and what in DeepSpeed 0.19.8 (or the Trainer) says so.

A rule names its flags, says what is wrong and how to mend it. `source` is the place in DeepSpeed's code, below
deepspeed/, where the combination is refused, ignored or comes to grief; docs/config.md lists it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dsrun.zero.generate.spec import ZeroSpec

ADAM = (None, "adam", "adamw")
STAGE12 = "runtime/zero/stage_1_and_2.py"
STAGE3 = "runtime/zero/stage3.py"
ENGINE = "runtime/engine.py"
CONFIG = "runtime/config.py"


@dataclass(frozen=True, kw_only=True)
class RuleContext:
    """What the rules look at: the spec and the number format that follows from it ("auto": the Trainer's)."""

    spec: ZeroSpec
    precision: str

    @property
    def offloads(self) -> bool:
        """Whether the optimizer leaves the GPU."""
        return self.spec.offload_optimizer != "none"

    @property
    def nvme(self) -> bool:
        """Whether anything goes to NVMe."""
        return "nvme" in (self.spec.offload_optimizer, self.spec.offload_param)

    @property
    def adam(self) -> bool:
        """Whether DeepSpeed's own Adam runs (on the CPU, where the optimizer is offloaded)."""
        return self.spec.optimizer in ADAM


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One combination that does not work. `message` and `fix` may name fields of the spec in braces."""

    when: Callable[[RuleContext], bool]
    message: str
    fix: str
    source: str


OFFLOAD_RULES = (
    Rule(
        when=lambda a: a.offloads and a.spec.stage == 0,
        message="--offload-optimizer {offload_optimizer}: offload needs ZeRO, plain data parallelism (--zero 0) keeps "
        "everything on the GPU",
        fix="add --zero 2 or --zero 3",
        source="ops/adam/cpu_adam.py (DeepSpeedCPUAdam.step wants parameters on the CPU)",
    ),
    Rule(
        when=lambda a: a.spec.offload_param != "none" and a.spec.stage != 3,
        message="--offload-param {offload_param}: ZeRO-{stage} cannot offload parameters",
        fix="use --zero 3",
        source="runtime/zero/offload_config.py (DeepSpeedZeroOffloadParamConfig)",
    ),
    Rule(
        when=lambda a: a.nvme and a.spec.stage != 3,
        message="--offload-optimizer nvme: ZeRO-{stage} cannot offload to NVMe, it would use host memory in silence",
        fix="use --zero 3, or --offload-optimizer cpu (--offload cpu)",
        source=f"{STAGE12} (any device but none is the CPU)",
    ),
    Rule(
        when=lambda a: a.nvme and not a.spec.nvme_path,
        message="offload to nvme has no folder to write to",
        fix="add --nvme-path /local/nvme",
        source="runtime/zero/partition_parameters.py (Init._validate_remote_device)",
    ),
    Rule(
        when=lambda a: a.spec.nvme_path is not None and not a.nvme,
        message="--nvme-path {nvme_path}: nothing is offloaded to NVMe",
        fix="add --offload-optimizer nvme or --offload-param nvme",
        source="runtime/zero/offload_config.py",
    ),
    Rule(
        when=lambda a: a.spec.pin_memory is not None and not a.offloads and a.spec.offload_param == "none",
        message="--pin-memory: nothing is offloaded",
        fix="add --offload-optimizer cpu",
        source="runtime/zero/offload_config.py",
    ),
    Rule(
        when=lambda a: a.spec.offload_ratio < 1 and (a.spec.stage != 3 or a.spec.offload_optimizer != "cpu"),
        message="--offload-ratio {offload_ratio} splits the optimizer of ZeRO-3 between GPU and CPU",
        fix="use --zero 3 --offload-optimizer cpu",
        source="runtime/zero/config.py (DeepSpeedZeroConfig.offload_ratio_check)",
    ),
    Rule(
        when=lambda a: a.spec.offload_ratio < 1 and not a.adam,
        message="--offload-ratio {offload_ratio} and --optimizer {optimizer}: only DeepSpeed's Adam can be split",
        fix="use --optimizer adamw",
        source=f"{STAGE3} (Hybrid Optimizer Only Supports DeepSpeedCPUAdam)",
    ),
    Rule(
        when=lambda a: a.spec.super_offload and (a.spec.stage != 3 or a.spec.offload_optimizer != "cpu"),
        message="--super-offload works on ZeRO-3's optimizer in host memory",
        fix="use --zero 3 --offload-optimizer cpu",
        source=f"{ENGINE} (_configure_zero_optimizer; below stage 3 it is ignored)",
    ),
    Rule(
        when=lambda a: a.spec.super_offload and not a.adam,
        message="--super-offload and --optimizer {optimizer}: SuperOffload has an Adam of its own",
        fix="use --optimizer adamw",
        source="runtime/superoffload/superoffload_stage3.py",
    ),
    Rule(
        when=lambda a: a.spec.super_offload and a.spec.zenflow,
        message="--super-offload and --zenflow are two ways to overlap the CPU's step",
        fix="leave out one of them",
        source=f"{ENGINE} (_configure_zero_optimizer picks one class)",
    ),
    Rule(
        when=lambda a: a.spec.super_offload and a.spec.offload_ratio < 1,
        message="--super-offload and --offload-ratio both decide what steps on the CPU",
        fix="leave out one of them",
        source="runtime/superoffload/superoffload_stage3.py",
    ),
    Rule(
        when=lambda a: a.offloads and a.spec.optimizer == "lamb",
        message="--offload-optimizer {offload_optimizer} and --optimizer lamb: LAMB has no CPU kernel",
        fix="use --optimizer adamw",
        source=f"{ENGINE} (_configure_basic_optimizer, FusedLamb)",
    ),
    Rule(
        when=lambda a: a.offloads and a.spec.torch_adam is True,
        message="--torch-adam and --offload-optimizer {offload_optimizer}: on the CPU only DeepSpeed's Adam is fast",
        fix="leave out --torch-adam",
        source=f"{ENGINE} (get_optimizer_configuration)",
    ),
    Rule(
        when=lambda a: (
            a.spec.offload_optimizer != "nvme"
            and (a.spec.pipeline_read or a.spec.pipeline_write or a.spec.nvme_fast_init)
        ),
        message="--pipeline-read, --pipeline-write and --nvme-fast-init are about an optimizer on NVMe",
        fix="use --offload-optimizer nvme",
        source=f"{STAGE3} (_configure_tensor_swapping)",
    ),
    Rule(
        when=lambda a: (
            a.spec.offload_param != "nvme"
            and any(
                x is not None
                for x in (a.spec.max_in_cpu, a.spec.param_buffer_size, a.spec.param_buffer_count)
            )
        ),
        message="--max-in-cpu, --param-buffer-size and --param-buffer-count are about parameters on NVMe",
        fix="use --offload-param nvme",
        source="runtime/swap_tensor/partitioned_param_swapper.py",
    ),
    Rule(
        when=lambda a: (
            not a.nvme
            and bool(a.spec.aio_block_size or a.spec.aio_queue_depth or a.spec.aio_parallelism or a.spec.gds)
        ),
        message="--aio-* and --gds are about NVMe, and nothing is offloaded to it",
        fix="add --offload-optimizer nvme --nvme-path DIR",
        source="runtime/swap_tensor/aio_config.py",
    ),
)

ZENFLOW_RULES = (
    Rule(
        when=lambda a: a.spec.zenflow and a.spec.offload_optimizer != "cpu",
        message="--zenflow splits an optimizer that is offloaded to the CPU",
        fix="add --offload-optimizer cpu",
        source="runtime/zenflow/zenflow_stage_1_and_2.py (_configure_zenflow)",
    ),
    Rule(
        when=lambda a: a.spec.zenflow and not a.adam,
        message="--zenflow and --optimizer {optimizer}: ZenFlow has an AdamW of its own",
        fix="use --optimizer adamw",
        source="runtime/zenflow/zenflow_stage_1_and_2.py (ZenFlowSelectiveAdamW)",
    ),
    Rule(
        when=lambda a: a.spec.zenflow and (a.spec.accumulation or 1) > 1,
        message="--zenflow and --accumulation {accumulation}: ZenFlow's update interval takes its place",
        fix="use --zenflow-update-interval {accumulation}",
        source="runtime/zenflow/engine.py (configure_zenflow sets gradient_accumulation_steps)",
    ),
    Rule(
        when=lambda a: (
            a.spec.zenflow_select_strategy == "auto" and a.spec.zenflow_select_interval is not None
        ),
        message="--zenflow-select-strategy auto sets the interval itself, --zenflow-select-interval is too much",
        fix="leave out one of them",
        source="runtime/zenflow/engine.py (configure_zenflow)",
    ),
    Rule(
        when=lambda a: (
            a.spec.zenflow
            and a.spec.target == "trainer"
            and a.spec.zenflow_select_strategy in ("auto", "epoch")
        ),
        message="--zenflow-select-strategy {zenflow_select_strategy} and --for trainer: DeepSpeed counts epochs on a "
        "data loader of its own, under the Trainer it would choose columns once and never again",
        fix="use --zenflow-select-strategy step",
        source="runtime/zenflow/engine.py (configure_zenflow, training_dataloader)",
    ),
    Rule(
        when=lambda a: (
            a.spec.zenflow
            and a.spec.zenflow_select_strategy in (None, "step")
            and (a.spec.zenflow_select_interval or 64) < (a.spec.zenflow_update_interval or 4)
        ),
        message="--zenflow-select-interval must be at least --zenflow-update-interval",
        fix="use a longer --zenflow-select-interval",
        source="runtime/zenflow/engine.py (configure_zenflow)",
    ),
    Rule(
        when=lambda a: a.spec.zenflow_offload_selected and not overlaps(a.spec),
        message="--zenflow-offload-selected needs --overlap-comm",
        fix="add --overlap-comm",
        source="runtime/zenflow/zenflow_stage_1_and_2.py",
    ),
)

ZEROPP_RULES = (
    Rule(
        when=lambda a: a.spec.qwz and a.spec.torch_autocast != "none",
        message="--qwz and --torch-autocast: autocast wants the weights as they are",
        fix="leave out one of them",
        source="runtime/torch_autocast.py (_validate_auto_cast_settings)",
    ),
    Rule(
        when=lambda a: a.spec.qgz and a.spec.reduce_scatter is False,
        message="--qgz and --no-reduce-scatter: quantized gradients are reduced by an all-to-all that scatters",
        fix="leave out --no-reduce-scatter",
        source=f"{STAGE3} (all2all_process_group)",
    ),
    Rule(
        when=lambda a: a.spec.qgz and a.spec.optimizer == "muon",
        message="--qgz and --optimizer muon: Muon needs whole gradients",
        fix="leave out one of them",
        source=f"{STAGE3} (Muon and all2all process group cannot be used together)",
    ),
    Rule(
        when=lambda a: a.spec.quantized_frozen_weights and a.precision in ("bf16", "fp32"),
        message="--quantized-frozen-weights works on fp16 weights only",
        fix="use --precision fp16",
        source=f"{STAGE3} (quantize_nontrainable_params)",
    ),
    Rule(
        when=lambda a: (
            a.spec.hpz > 1 and a.spec.gpus is not None and a.spec.gpus % min(a.spec.hpz, a.spec.gpus) != 0
        ),
        message="--hpz {hpz} does not divide --gpus {gpus}",
        fix="use the number of GPUs of one node",
        source="utils/groups.py (_create_zero_param_parallel_group)",
    ),
)


def overlaps(spec: ZeroSpec) -> bool:
    """Whether gradients are reduced during the backward pass."""
    return spec.preset != "conservative" if spec.overlap_comm is None else spec.overlap_comm
