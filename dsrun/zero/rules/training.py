"""The rules about number formats, the optimizer and gradients."""

from __future__ import annotations

from dsrun.zero.rules.rule import (
    ENGINE,
    STAGE3,
    STAGE12,
    Rule,
    has_zenflow,
    is_on,
    is_own_adam,
    number,
    offloads_optimizer,
    optimizer_name,
    precision,
)
from dsrun.zero.view import ZERO, ConfigView

BF16_MASTER = "bf16.bf16_master_weights_and_grads"
FP16_MASTER = "fp16.fp16_master_weights_and_grads"


def _uses_cpu_adam(view: ConfigView) -> bool:
    return offloads_optimizer(view) and is_own_adam(view) and not has_zenflow(view)


def _bf16_master_needs_cpu_adam(view: ConfigView) -> bool:
    on_gpu = is_on(view, "bf16.bf16_optimizer_states") and not offloads_optimizer(view)
    return is_on(view, BF16_MASTER) and bool(view.stage) and not on_gpu and not _uses_cpu_adam(view)


def _scatters(view: ConfigView) -> bool:
    return view.stage in (2, 3) and view.value(f"{ZERO}.reduce_scatter") is not False


def _skips_grad_norm(view: ConfigView) -> bool:
    return view.stage in (1, 2) and view.value(f"{ZERO}.compute_grad_norm") is False


PRECISION_RULES = (
    Rule(
        when=lambda v: is_on(v, BF16_MASTER) and is_on(v, FP16_MASTER),
        key=BF16_MASTER,
        message="bf16_master_weights_and_grads and fp16_master_weights_and_grads exclude each other",
        fix="remove one of them",
        source="runtime/base_optimizer.py (_configure_master_weights)",
    ),
    Rule(
        when=lambda v: is_on(v, BF16_MASTER) and precision(v) in ("fp16", "fp32"),
        key=BF16_MASTER,
        message="bf16_master_weights_and_grads is for a model in bf16, which is off",
        fix='write "bf16": {"enabled": true, …}',
        source="runtime/precision_config.py (DeepSpeedBF16Config)",
        level="warning",
    ),
    Rule(
        when=lambda v: is_on(v, FP16_MASTER) and precision(v) in ("bf16", "fp32"),
        key=FP16_MASTER,
        message="fp16_master_weights_and_grads is for a model in fp16, which is off",
        fix='write "fp16": {"enabled": true, …}',
        source="runtime/precision_config.py (DeepSpeedFP16Config)",
        level="warning",
    ),
    Rule(
        when=_bf16_master_needs_cpu_adam,
        key=BF16_MASTER,
        message="bf16_master_weights_and_grads without bf16_optimizer_states, or with an offloaded optimizer, needs "
        "DeepSpeed's CPU Adam",
        fix='add "bf16_optimizer_states": true and keep the optimizer on the GPU, or offload AdamW to the CPU without '
        "zenflow",
        source="runtime/base_optimizer.py (_configure_master_weights)",
    ),
    Rule(
        when=lambda v: is_on(v, FP16_MASTER) and bool(v.stage) and not _uses_cpu_adam(v),
        key=FP16_MASTER,
        message="fp16_master_weights_and_grads needs DeepSpeed's CPU Adam",
        fix="offload AdamW to the CPU without zenflow",
        source="runtime/base_optimizer.py (_configure_master_weights)",
    ),
    Rule(
        when=lambda v: is_on(v, "torch_autocast.enabled") and precision(v) in ("bf16", "fp16"),
        key="torch_autocast.enabled",
        message="torch_autocast keeps the weights in fp32, and bf16 or fp16 casts them",
        fix="switch bf16 and fp16 off, or remove torch_autocast",
        source="runtime/torch_autocast.py (autocast_if_enabled)",
        level="warning",
    ),
)

OPTIMIZER_RULES = (
    Rule(
        when=lambda v: optimizer_name(v) == "muon" and v.stage == 3 and v.value(f"{ZERO}.reduce_scatter") is not False,
        key="optimizer.type",
        message="Muon under ZeRO-3 needs whole gradients, and reduce_scatter is on",
        fix='write "reduce_scatter": false in zero_optimization',
        source=f"{STAGE3} (Muon and reduce scatter cannot be used together)",
    ),
    Rule(
        when=lambda v: optimizer_name(v) == "lamb" and number(v, "fp16.loss_scale") > 0,
        key="fp16.loss_scale",
        message="LAMB needs dynamic loss scaling, not a loss_scale of {fp16.loss_scale}",
        fix='write "loss_scale": 0',
        source=f"{ENGINE} (_do_sanity_check)",
    ),
    Rule(
        when=lambda v: _skips_grad_norm(v) and offloads_optimizer(v),
        key=f"{ZERO}.compute_grad_norm",
        message="compute_grad_norm: false does not work with an offloaded optimizer",
        fix="remove compute_grad_norm",
        source=f"{STAGE12} (DeepSpeedZeroOptimizer.__init__)",
    ),
    Rule(
        when=lambda v: _skips_grad_norm(v) and has_zenflow(v),
        key=f"{ZERO}.compute_grad_norm",
        message="compute_grad_norm: false does not work with zenflow",
        fix="remove compute_grad_norm",
        source=f"{STAGE12} (DeepSpeedZeroOptimizer.__init__)",
    ),
    Rule(
        when=lambda v: (
            _skips_grad_norm(v)
            and v.stage == 1
            and precision(v) == "bf16"
            and v.raw("data_types", "grad_accum_dtype") == "fp32"
            and not offloads_optimizer(v)
        ),
        key=f"{ZERO}.compute_grad_norm",
        message="compute_grad_norm: false does not work at stage 1 with bf16 and grad_accum_dtype fp32",
        fix="remove compute_grad_norm",
        source=f"{ENGINE} (_do_optimizer_sanity_check)",
    ),
    Rule(
        when=lambda v: _scatters(v) and v.raw("prescale_gradients") is True,
        key="prescale_gradients",
        message="prescale_gradients does not work with reduce_scatter at stage {zero_optimization.stage}",
        fix='write "reduce_scatter": false in zero_optimization',
        source=f"{STAGE12} and {STAGE3} (with reduce scatter enabled)",
    ),
    Rule(
        when=lambda v: _scatters(v) and number(v, "gradient_predivide_factor", 1) != 1,
        key="gradient_predivide_factor",
        message="gradient_predivide_factor {gradient_predivide_factor} does not work with reduce_scatter at stage "
        "{zero_optimization.stage}",
        fix='write "reduce_scatter": false in zero_optimization',
        source=f"{STAGE12} and {STAGE3} (with reduce scatter enabled)",
    ),
    Rule(
        when=lambda v: v.stage in (1, 2) and number(v, f"{ZERO}.allgather_bucket_size") % 2 == 1,
        key=f"{ZERO}.allgather_bucket_size",
        message="allgather_bucket_size {zero_optimization.allgather_bucket_size} is odd",
        fix="write an even number",
        source=f"{STAGE12} (nccl_start_alignment_factor)",
    ),
)
