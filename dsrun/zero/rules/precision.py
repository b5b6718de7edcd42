"""The rules about number formats."""

from __future__ import annotations

from dsrun.zero.rules.zero import CONFIG, ENGINE, Rule

PRECISION_RULES = (
    Rule(
        when=lambda a: a.spec.bf16_master_weights and a.spec.fp16_master_weights,
        message="--bf16-master-weights and --fp16-master-weights exclude each other",
        fix="leave out one of them",
        source="runtime/base_optimizer.py (_configure_master_weights)",
    ),
    Rule(
        when=lambda a: a.spec.bf16_master_weights and a.precision != "bf16",
        message="--bf16-master-weights and --precision {precision} do not go together",
        fix="use --precision bf16",
        source="runtime/precision_config.py (DeepSpeedBF16Config)",
    ),
    Rule(
        when=lambda a: a.spec.fp16_master_weights and a.precision != "fp16",
        message="--fp16-master-weights and --precision {precision} do not go together",
        fix="use --precision fp16",
        source="runtime/precision_config.py (DeepSpeedFP16Config)",
    ),
    Rule(
        when=lambda a: (a.spec.bf16_master_weights or a.spec.fp16_master_weights) and a.spec.stage == 0,
        message="16-bit master weights (--bf16-master-weights, --fp16-master-weights) need ZeRO, not --zero 0",
        fix="use --zero 1, 2 or 3",
        source=f"{CONFIG} (_do_error_check)",
    ),
    Rule(
        when=lambda a: (
            a.spec.bf16_master_weights
            and (not a.spec.bf16_optimizer_states or a.offloads)
            and not (a.offloads and a.adam and not a.spec.zenflow)
        ),
        message="--bf16-master-weights without --bf16-optimizer-states, or with offload, runs on DeepSpeed's CPU Adam",
        fix="add --bf16-optimizer-states and keep the optimizer on the GPU, or use --offload-optimizer cpu "
        "--optimizer adamw without --zenflow",
        source="runtime/base_optimizer.py (_configure_master_weights)",
    ),
    Rule(
        when=lambda a: a.spec.fp16_master_weights and not (a.offloads and a.adam and not a.spec.zenflow),
        message="--fp16-master-weights run on DeepSpeed's CPU Adam",
        fix="use --offload-optimizer cpu --optimizer adamw without --zenflow",
        source="runtime/base_optimizer.py (_configure_master_weights)",
    ),
    Rule(
        when=lambda a: a.spec.torch_autocast != "none" and a.precision in ("bf16", "fp16"),
        message="--torch-autocast and --precision {precision}: autocast keeps weights in fp32",
        fix="use --precision fp32, or leave out --torch-autocast",
        source="runtime/torch_autocast.py (autocast_if_enabled)",
    ),
    Rule(
        when=lambda a: (
            a.precision in ("fp16", "fp32")
            and (a.spec.check_grad_overflow is not None or a.spec.immediate_grad_update)
        ),
        message="--check-grad-overflow and --immediate-grad-update are bf16's, the precision is {precision}",
        fix="use --precision bf16",
        source="runtime/precision_config.py (DeepSpeedBF16Config)",
    ),
    Rule(
        when=lambda a: (
            a.precision in ("bf16", "fp32")
            and (
                a.spec.fp16_auto_cast
                or a.spec.consecutive_hysteresis
                or any(
                    each is not None
                    for each in (
                        a.spec.loss_scale,
                        a.spec.initial_scale_power,
                        a.spec.loss_scale_window,
                        a.spec.hysteresis,
                        a.spec.min_loss_scale,
                    )
                )
            )
        ),
        message="loss scaling (--loss-scale, --initial-scale-power, --loss-scale-window, --hysteresis, "
        "--consecutive-hysteresis, --min-loss-scale) and --fp16-auto-cast are fp16's, the precision is {precision}",
        fix="use --precision fp16",
        source="runtime/precision_config.py (DeepSpeedFP16Config)",
    ),
    Rule(
        when=lambda a: a.spec.stage == 0 and a.spec.grad_accum_dtype not in (None, a.precision),
        message="--grad-accum-dtype {grad_accum_dtype} and --zero 0: without ZeRO gradients have the weights' format",
        fix="use --zero 1 or higher, or the --precision of the same name",
        source=f"{ENGINE} (_do_optimizer_sanity_check)",
    ),
)
