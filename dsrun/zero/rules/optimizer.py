"""The rules about optimizer, scheduler and gradients."""

from __future__ import annotations

from dsrun.zero.rules.zero import CONFIG, ENGINE, STAGE3, STAGE12, Rule, RuleContext


def _scatters(a: RuleContext) -> bool:
    return a.spec.stage in (2, 3) and a.spec.reduce_scatter is not False


OPTIMIZER_RULES = (
    Rule(
        when=lambda a: (
            a.spec.target == "trainer"
            and a.spec.optimizer in (None, "client")
            and not (a.offloads and a.spec.optimizer is None)
            and any(x is not None for x in (a.spec.lr, a.spec.betas, a.spec.eps, a.spec.weight_decay))
        ),
        message="--lr, --betas, --eps and --weight-decay without --optimizer: the Trainer has its own",
        fix="add --optimizer adamw, or give the Trainer --learning_rate and the like",
        source="transformers: integrations/deepspeed.py (deepspeed_optim_sched)",
    ),
    Rule(
        when=lambda a: (
            a.spec.optimizer == "client"
            and any(x is not None for x in (a.spec.lr, a.spec.betas, a.spec.eps, a.spec.weight_decay))
        ),
        message="--optimizer client: the program's own optimizer does not read --lr, --betas, --eps or --weight-decay",
        fix="leave them out",
        source=f"{ENGINE} (_configure_optimizer)",
    ),
    Rule(
        when=lambda a: a.spec.optimizer == "client" and a.spec.scheduler not in (None, "none"),
        message="--scheduler {scheduler} and --optimizer client: the program brings both, or neither",
        fix="leave out --scheduler",
        source="accelerate: accelerator.py (_prepare_deepspeed)",
    ),
    Rule(
        when=lambda a: (
            a.spec.optimizer != "muon"
            and (
                a.spec.muon_lr is not None
                or a.spec.muon_momentum is not None
                or a.spec.muon_ns_method is not None
                or a.spec.per_head_muon
                or a.spec.muon_momentum_in_memory
            )
        ),
        message="--muon-* and --per-head-muon are Muon's",
        fix="use --optimizer muon",
        source=f"{ENGINE} (_configure_basic_optimizer)",
    ),
    Rule(
        when=lambda a: a.spec.optimizer == "muon" and a.spec.stage == 3 and a.spec.reduce_scatter is True,
        message="--optimizer muon, --zero 3 and --reduce-scatter: Muon needs whole gradients",
        fix="leave out --reduce-scatter",
        source=f"{STAGE3} (Muon and reduce scatter cannot be used together)",
    ),
    Rule(
        when=lambda a: (
            a.spec.betas is not None
            and (len(a.spec.betas) != 2 or max(a.spec.betas) >= 1 or a.spec.optimizer in ("adagrad", "sgd"))
        ),
        message="--betas takes two numbers below 1, and belongs to Adam, Lion, LAMB and Muon",
        fix="write --betas 0.9 0.999",
        source=f"{ENGINE} (_configure_basic_optimizer)",
    ),
    Rule(
        when=lambda a: a.spec.eps is not None and a.spec.optimizer in ("lion", "sgd"),
        message="--eps and --optimizer {optimizer}: it has none",
        fix="leave out --eps",
        source=f"{ENGINE} (_configure_basic_optimizer)",
    ),
    Rule(
        when=lambda a: (
            a.spec.torch_adam is not None and a.spec.optimizer not in (None, "adam", "adamw", "muon")
        ),
        message="--torch-adam and --optimizer {optimizer}: there is no Adam in it",
        fix="leave out --torch-adam",
        source=f"{ENGINE} (get_optimizer_configuration)",
    ),
    Rule(
        when=lambda a: a.spec.optimizer == "lamb" and bool(a.spec.loss_scale),
        message="--optimizer lamb wants dynamic loss scaling, not --loss-scale {loss_scale}",
        fix="leave out --loss-scale",
        source=f"{ENGINE} (_do_sanity_check)",
    ),
    Rule(
        when=lambda a: (
            a.spec.target == "deepspeed"
            and a.spec.scheduler in ("linear", "cosine")
            and a.spec.total_steps is None
        ),
        message="--scheduler {scheduler} has to know where it ends",
        fix="add --total-steps N",
        source="runtime/lr_schedules.py (WarmupDecayLR, WarmupCosineLR)",
    ),
    Rule(
        when=lambda a: (
            a.spec.target == "trainer"
            and a.spec.scheduler is None
            and (a.spec.warmup_steps is not None or a.spec.total_steps is not None)
        ),
        message="--warmup-steps and --total-steps without --scheduler: the Trainer has its own",
        fix="add --scheduler linear, or give the Trainer --warmup_steps and --max_steps",
        source="transformers: integrations/deepspeed.py (deepspeed_optim_sched)",
    ),
    Rule(
        when=lambda a: (
            a.spec.scheduler in (None, "none", "warmup", "linear") and a.spec.min_lr_ratio is not None
        ),
        message="--min-lr-ratio is where a cosine ends",
        fix="use --scheduler cosine",
        source="runtime/lr_schedules.py (WarmupCosineLR)",
    ),
    Rule(
        when=lambda a: (
            a.spec.total_steps is not None
            and a.spec.warmup_steps is not None
            and a.spec.warmup_steps >= a.spec.total_steps
        ),
        message="--warmup-steps {warmup_steps} is not less than --total-steps {total_steps}",
        fix="warm up for fewer steps",
        source="runtime/lr_schedules.py (WarmupDecayLR)",
    ),
    Rule(
        when=lambda a: a.spec.compute_grad_norm is False and a.spec.gradient_clipping != 0,
        message="--no-compute-grad-norm leaves nothing to clip by",
        fix="add --gradient-clipping 0",
        source=f"{STAGE12} (DeepSpeedZeroOptimizer.__init__)",
    ),
    Rule(
        when=lambda a: a.spec.compute_grad_norm is False and (a.offloads or a.spec.zenflow),
        message="--no-compute-grad-norm and --offload-optimizer {offload_optimizer} (or --zenflow) do not go together",
        fix="leave out --no-compute-grad-norm",
        source=f"{STAGE12} (DeepSpeedZeroOptimizer.__init__)",
    ),
    Rule(
        when=lambda a: (
            a.spec.compute_grad_norm is False
            and a.spec.stage == 1
            and a.precision == "bf16"
            and a.spec.grad_accum_dtype == "fp32"
        ),
        message="--no-compute-grad-norm, --zero 1 and --grad-accum-dtype fp32 under bf16 do not go together",
        fix="leave out --no-compute-grad-norm",
        source=f"{ENGINE} (_do_optimizer_sanity_check)",
    ),
    Rule(
        when=lambda a: (
            _scatters(a)
            and (a.spec.prescale_gradients or a.spec.gradient_predivide_factor not in (None, 1.0))
        ),
        message="--prescale-gradients and --gradient-predivide-factor do not go with ZeRO-{stage}'s reduce-scatter",
        fix="add --no-reduce-scatter",
        source=f"{STAGE12} and {STAGE3} (with reduce scatter enabled)",
    ),
    Rule(
        when=lambda a: (
            a.spec.gradient_allreduce_op == "sum"
            and (a.spec.stage == 3 or a.spec.zenflow or a.spec.deepcompile)
        ),
        message="--gradient-allreduce-op sum does not go with --zero 3, --zenflow or --deepcompile",
        fix="use mean",
        source=f"{CONFIG} (_do_error_check)",
    ),
    Rule(
        when=lambda a: (a.spec.allgather_bucket_size or 0) % 2 == 1,
        message="--allgather-bucket-size {allgather_bucket_size} is odd",
        fix="use an even number",
        source=f"{STAGE12} (nccl_start_alignment_factor)",
    ),
)
