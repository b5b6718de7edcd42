"""The rules about offload, ZenFlow and ZeRO++."""

from __future__ import annotations

from dsrun.zero.rules.rule import (
    ENGINE,
    OPTIMIZER,
    PARAM,
    STAGE3,
    ZENFLOW,
    Rule,
    has_zenflow,
    is_adam,
    is_on,
    is_own_adam,
    number,
    offloads_optimizer,
    optimizer_name,
    precision,
    uses_nvme,
)
from dsrun.zero.view import ZERO, ConfigView

DEVICE = f"{OPTIMIZER}.device"
RATIO = f"{OPTIMIZER}.ratio"
SUPER = f"{OPTIMIZER}.super_offload"
TO_NVME = ("pipeline_read", "pipeline_write", "fast_init")
NVME_BUFFERS = ("max_in_cpu", "buffer_size", "buffer_count")


def _splits(view: ConfigView) -> bool:
    return number(view, RATIO, 1) < 1


def _selects(view: ConfigView) -> tuple[object, object, object]:
    return tuple(view.value(f"{ZENFLOW}.{key}") for key in ("select_strategy", "select_interval", "update_interval"))


def _interval_is_given_to_auto(view: ConfigView) -> bool:
    strategy, select, _ = _selects(view)
    return strategy == "auto" and isinstance(select, int)


def _interval_is_missing(view: ConfigView) -> bool:
    strategy, select, _ = _selects(view)
    return strategy in ("step", "epoch") and isinstance(select, str)


def _selects_too_often(view: ConfigView) -> bool:
    strategy, select, update = _selects(view)
    return strategy == "step" and isinstance(select, int) and isinstance(update, int) and 0 < select < update


def _does_not_overlap(view: ConfigView) -> bool:
    overlap = view.value(f"{ZERO}.overlap_comm")
    return overlap is False or (overlap is None and view.stage in (1, 2))


def _secondary_shards_do_not_fit(view: ConfigView) -> bool:
    size, world = number(view, f"{ZERO}.zero_hpz_partition_size", 1), view.world_size
    return view.stage == 3 and size > 1 and world is not None and world % min(size, world) != 0


def _optimizer_on_nvme(key: str) -> Rule:
    return Rule(
        when=lambda v: is_on(v, f"{OPTIMIZER}.{key}") and v.offload("offload_optimizer") != "nvme",
        key=f"{OPTIMIZER}.{key}",
        message=f"{key} is for an optimizer on NVMe, and the device is {{{DEVICE}}}",
        fix='write "device": "nvme" and "nvme_path"',
        source=f"{STAGE3} (_configure_tensor_swapping)",
        level="warning",
    )


def _parameters_on_nvme(key: str) -> Rule:
    return Rule(
        when=lambda v: v.has(ZERO, "offload_param", key) and v.offload("offload_param") != "nvme",
        key=f"{PARAM}.{key}",
        message=f"{key} is for parameters on NVMe, and the device is {{{PARAM}.device}}",
        fix='write "device": "nvme" and "nvme_path"',
        source="runtime/swap_tensor/partitioned_param_swapper.py",
        level="info",
        code="no_effect",
    )


OFFLOAD_RULES = (
    Rule(
        when=lambda v: _splits(v) and v.stage == 3 and v.offload("offload_optimizer") in ("none", "nvme"),
        key=RATIO,
        message=f"ratio {{{RATIO}}} splits an optimizer in host memory, and the device is {{{DEVICE}}}",
        fix='write "device": "cpu"',
        source=f"{STAGE3} (partial_offload)",
        level="warning",
    ),
    Rule(
        when=lambda v: _splits(v) and v.stage == 3 and (not is_own_adam(v) or has_zenflow(v)),
        key=RATIO,
        message=f"ratio {{{RATIO}}}: only DeepSpeed's own CPU Adam can be split between GPU and CPU",
        fix="use AdamW without torch_adam and zenflow",
        source=f"{STAGE3} (Hybrid Optimizer Only Supports DeepSpeedCPUAdam)",
    ),
    Rule(
        when=lambda v: is_on(v, SUPER) and v.stage == 3 and v.offload("offload_optimizer") in ("none", "nvme"),
        key=SUPER,
        message=f"super_offload works on an optimizer in host memory, and the device is {{{DEVICE}}}",
        fix='write "device": "cpu"',
        source=f"{ENGINE} (_configure_zero_optimizer)",
        level="warning",
    ),
    Rule(
        when=lambda v: is_on(v, SUPER) and v.stage == 3 and not is_adam(v),
        key=SUPER,
        message="super_offload has an Adam of its own, and the optimizer is {optimizer.type}",
        fix="use AdamW",
        source="runtime/superoffload/superoffload_stage3.py (reads betas, eps and amsgrad)",
    ),
    Rule(
        when=lambda v: is_on(v, SUPER) and has_zenflow(v),
        key=SUPER,
        message="super_offload and zenflow are two ways to overlap the CPU's step; DeepSpeed takes one",
        fix="remove one of them",
        source=f"{ENGINE} (_configure_zero_optimizer picks one class)",
        level="warning",
    ),
    Rule(
        when=lambda v: is_on(v, SUPER) and _splits(v),
        key=SUPER,
        message="super_offload and ratio both decide what steps on the CPU",
        fix="remove one of them",
        source="runtime/superoffload/superoffload_stage3.py",
        level="warning",
    ),
    Rule(
        when=lambda v: bool(v.stage) and offloads_optimizer(v) and optimizer_name(v) == "lamb",
        key="optimizer.type",
        message="LAMB has no CPU kernel, and the optimizer is offloaded: the first step fails",
        fix="use AdamW",
        source=f"{ENGINE} (_configure_basic_optimizer, FusedLamb)",
    ),
    Rule(
        when=lambda v: bool(v.stage) and offloads_optimizer(v) and v.raw("optimizer", "params", "torch_adam") is True,
        key="optimizer.params.torch_adam",
        message="torch_adam with an offloaded optimizer: PyTorch's Adam is several times slower on the CPU",
        fix="remove torch_adam",
        source=f"{ENGINE} (get_optimizer_configuration)",
        level="warning",
    ),
    *map(_optimizer_on_nvme, TO_NVME),
    *map(_parameters_on_nvme, NVME_BUFFERS),
    Rule(
        when=lambda v: v.is_block("aio") and not uses_nvme(v),
        key="aio",
        message="aio is for offload to NVMe, and nothing goes there",
        fix='write "device": "nvme" and "nvme_path" in offload_optimizer',
        source="runtime/swap_tensor/aio_config.py",
        level="info",
        code="no_effect",
    ),
)

ZENFLOW_RULES = (
    Rule(
        when=lambda v: has_zenflow(v) and v.stage == 3 and v.offload("offload_optimizer") in ("none", "nvme"),
        key=ZENFLOW,
        message=f"zenflow splits an optimizer in host memory, and the device is {{{DEVICE}}}",
        fix='add "offload_optimizer": {"device": "cpu"}',
        source="runtime/zenflow/engine_stage3.py",
        level="warning",
    ),
    Rule(
        when=lambda v: has_zenflow(v) and bool(v.stage) and offloads_optimizer(v) and not is_own_adam(v),
        key=ZENFLOW,
        message="zenflow works with DeepSpeed's own AdamW only: the first step fails",
        fix="use AdamW without torch_adam",
        source="runtime/zenflow/zenflow_stage_1_and_2.py (ZenFlowSelectiveAdamW)",
    ),
    Rule(
        when=lambda v: has_zenflow(v) and number(v, "gradient_accumulation_steps", 1) > 1,
        key="gradient_accumulation_steps",
        message="zenflow's update_interval takes the place of gradient_accumulation_steps "
        "{gradient_accumulation_steps}",
        fix='write "update_interval": {gradient_accumulation_steps} in zenflow, and accumulate over 1 step',
        source="runtime/zenflow/engine.py (configure_zenflow sets gradient_accumulation_steps)",
        level="warning",
    ),
    Rule(
        when=lambda v: has_zenflow(v) and _interval_is_given_to_auto(v),
        key=f"{ZENFLOW}.select_interval",
        message='select_strategy "auto" sets the interval itself, and DeepSpeed stops on a select_interval beside it',
        fix='remove select_interval, or write "select_strategy": "step"',
        source="runtime/zenflow/engine.py (configure_zenflow)",
    ),
    Rule(
        when=lambda v: has_zenflow(v) and _interval_is_missing(v),
        key=f"{ZENFLOW}.select_strategy",
        message="select_strategy {zero_optimization.zenflow.select_strategy} needs a select_interval",
        fix='add "select_interval": 64',
        source="runtime/zenflow/engine.py (configure_zenflow)",
    ),
    Rule(
        when=lambda v: has_zenflow(v) and v.for_trainer and _selects(v)[0] in ("auto", "epoch"),
        key=f"{ZENFLOW}.select_strategy",
        message="select_strategy {zero_optimization.zenflow.select_strategy}: DeepSpeed counts epochs on its own data "
        "loader; under the Trainer it chooses columns once and never again",
        fix='write "select_strategy": "step" and "select_interval": 64',
        source="runtime/zenflow/engine.py (configure_zenflow, training_dataloader)",
        level="warning",
    ),
    Rule(
        when=lambda v: has_zenflow(v) and _selects_too_often(v),
        key=f"{ZENFLOW}.select_interval",
        message="select_interval {zero_optimization.zenflow.select_interval} is less than update_interval "
        "{zero_optimization.zenflow.update_interval}",
        fix="write a longer select_interval",
        source="runtime/zenflow/engine.py (configure_zenflow)",
    ),
    Rule(
        when=lambda v: has_zenflow(v) and is_on(v, f"{ZENFLOW}.offload") and _does_not_overlap(v),
        key=f"{ZENFLOW}.offload",
        message="zenflow's offload needs overlap_comm",
        fix='write "overlap_comm": true in zero_optimization',
        source="runtime/zenflow/zenflow_stage_1_and_2.py (offload selective optimizer)",
    ),
)

ZEROPP_RULES = (
    Rule(
        when=lambda v: is_on(v, f"{ZERO}.zero_quantized_weights") and is_on(v, "torch_autocast.enabled"),
        key=f"{ZERO}.zero_quantized_weights",
        message="zero_quantized_weights (qwZ) and torch_autocast exclude each other",
        fix="remove one of them",
        source="runtime/torch_autocast.py (_validate_auto_cast_settings)",
    ),
    Rule(
        when=lambda v: (
            v.stage == 3 and is_on(v, f"{ZERO}.zero_quantized_gradients") and v.value(f"{ZERO}.reduce_scatter") is False
        ),
        key=f"{ZERO}.reduce_scatter",
        message="zero_quantized_gradients (qgZ) needs reduce_scatter",
        fix='write "reduce_scatter": true',
        source=f"{STAGE3} (when enable all_to_all_reduce)",
    ),
    Rule(
        when=lambda v: v.stage == 3 and is_on(v, f"{ZERO}.zero_quantized_gradients") and optimizer_name(v) == "muon",
        key=f"{ZERO}.zero_quantized_gradients",
        message="Muon needs whole gradients, and zero_quantized_gradients (qgZ) scatters them",
        fix="remove one of them",
        source=f"{STAGE3} (Muon and all2all process group cannot be used together)",
    ),
    Rule(
        when=lambda v: is_on(v, f"{ZERO}.zero_quantized_nontrainable_weights") and precision(v) in ("bf16", "fp32"),
        key=f"{ZERO}.zero_quantized_nontrainable_weights",
        message="zero_quantized_nontrainable_weights quantizes fp16 weights only",
        fix='write "fp16": {"enabled": true}, or remove it',
        source=f"{STAGE3} (quantize_nontrainable_params)",
        level="warning",
    ),
    Rule(
        when=_secondary_shards_do_not_fit,
        key=f"{ZERO}.zero_hpz_partition_size",
        message="zero_hpz_partition_size {zero_optimization.zero_hpz_partition_size} does not divide the number of "
        "GPUs",
        fix="use the number of GPUs of one node",
        source="utils/groups.py (_create_zero_param_parallel_group)",
    ),
)
