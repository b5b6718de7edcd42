"""Options that do not go together are refused by name, with a way out; each rule has an example that meets it."""

from __future__ import annotations

import re

import pytest

from dsrun.errors import UsageError
from dsrun.hardware.gpus import lookup
from dsrun.zero.generate.config import HardwareFacts, generate
from dsrun.zero.generate.spec import ZeroSpec, flag_of, options
from dsrun.zero.rules.check import RULES, STAGES_OF_OPTION, check
from dsrun.zero.rules.zero import RuleContext

CPU = {"offload_optimizer": "cpu"}
COMPILED = {"deepcompile": True}
MIXED = {"autoep": 2, "stage": 3}

# What is asked for, and the flags that the refusal names.
EXAMPLES = [
    ({"stage": 0, **CPU}, ["--offload-optimizer cpu", "--zero 0"]),
    ({"stage": 2, "offload_param": "cpu"}, ["--offload-param cpu", "--zero 3"]),
    ({"stage": 2, "offload_optimizer": "nvme", "nvme_path": "/n"}, ["--offload-optimizer nvme", "--zero 3"]),
    ({"stage": 3, "offload_param": "nvme"}, ["--nvme-path"]),
    ({"stage": 3, "nvme_path": "/n"}, ["--nvme-path /n", "--offload-optimizer nvme"]),
    ({"pin_memory": False}, ["--pin-memory", "--offload-optimizer cpu"]),
    ({"offload_ratio": 0.5, **CPU}, ["--offload-ratio 0.5", "--zero 3"]),
    ({"stage": 3, "offload_ratio": 0.5, "optimizer": "lion", **CPU}, ["--offload-ratio", "--optimizer lion"]),
    ({"super_offload": True, **CPU}, ["--super-offload", "--zero 3"]),
    (
        {"stage": 3, "super_offload": True, "optimizer": "muon", **CPU},
        ["--super-offload", "--optimizer muon"],
    ),
    ({"stage": 3, "super_offload": True, "zenflow": True, **CPU}, ["--super-offload", "--zenflow"]),
    (
        {"stage": 3, "super_offload": True, "offload_ratio": 0.5, **CPU},
        ["--super-offload", "--offload-ratio"],
    ),
    ({"optimizer": "lamb", **CPU}, ["--optimizer lamb", "--offload-optimizer cpu"]),
    ({"torch_adam": True, **CPU}, ["--torch-adam", "--offload-optimizer cpu"]),
    ({"stage": 3, "pipeline_read": True, **CPU}, ["--pipeline-read", "--offload-optimizer nvme"]),
    ({"stage": 3, "max_in_cpu": 5, **CPU}, ["--max-in-cpu", "--offload-param nvme"]),
    ({"stage": 3, "gds": True, **CPU}, ["--gds", "--offload-optimizer nvme"]),
    ({"zenflow": True}, ["--zenflow", "--offload-optimizer cpu"]),
    ({"zenflow": True, "optimizer": "lion", **CPU}, ["--zenflow", "--optimizer lion"]),
    ({"zenflow": True, "accumulation": 4, **CPU}, ["--zenflow", "--accumulation 4"]),
    (
        {"zenflow": True, "zenflow_select_strategy": "auto", "zenflow_select_interval": 3, **CPU},
        ["--zenflow-select-strategy auto", "--zenflow-select-interval"],
    ),
    (
        {"zenflow": True, "zenflow_select_strategy": "epoch", **CPU},
        ["--zenflow-select-strategy epoch", "--for trainer"],
    ),
    (
        {"zenflow": True, "zenflow_select_interval": 2, **CPU},
        ["--zenflow-select-interval", "--zenflow-update-interval"],
    ),
    (
        {"zenflow": True, "zenflow_offload_selected": True, "preset": "conservative", **CPU},
        ["--zenflow-offload-selected", "--overlap-comm"],
    ),
    ({"stage": 3, "qwz": True, "torch_autocast": "bf16"}, ["--qwz", "--torch-autocast"]),
    ({"stage": 3, "qgz": True, "reduce_scatter": False}, ["--qgz", "--no-reduce-scatter"]),
    ({"stage": 3, "qgz": True, "optimizer": "muon"}, ["--qgz", "--optimizer muon"]),
    (
        {"stage": 3, "quantized_frozen_weights": True, "precision": "bf16"},
        ["--quantized-frozen-weights", "fp16"],
    ),
    ({"stage": 3, "hpz": 3, "gpus": 8}, ["--hpz 3", "--gpus 8"]),
    ({"bf16_master_weights": True, "precision": "fp16"}, ["--bf16-master-weights", "--precision fp16"]),
    ({"fp16_master_weights": True, "precision": "bf16"}, ["--fp16-master-weights", "--precision bf16"]),
    (
        {"bf16_master_weights": True, "fp16_master_weights": True, **CPU},
        ["--fp16-master-weights", "--bf16-master-weights"],
    ),
    ({"stage": 0, "bf16_master_weights": True}, ["--bf16-master-weights", "--zero 0"]),
    (
        {"bf16_master_weights": True},
        ["--bf16-master-weights", "--bf16-optimizer-states", "--offload-optimizer cpu"],
    ),
    (
        {"bf16_master_weights": True, "bf16_optimizer_states": True, "optimizer": "client", **CPU},
        ["--bf16-master-weights", "--optimizer adamw"],
    ),
    ({"bf16_master_weights": True, "zenflow": True, **CPU}, ["--bf16-master-weights", "--zenflow"]),
    ({"fp16_master_weights": True}, ["--fp16-master-weights", "--offload-optimizer cpu"]),
    ({"torch_autocast": "bf16", "precision": "bf16"}, ["--torch-autocast", "--precision bf16"]),
    ({"check_grad_overflow": False, "precision": "fp16"}, ["--check-grad-overflow", "bf16"]),
    ({"loss_scale": 128.0, "precision": "bf16"}, ["--loss-scale", "--precision fp16"]),
    ({"stage": 0, "grad_accum_dtype": "fp32", "precision": "bf16"}, ["--grad-accum-dtype fp32", "--zero 0"]),
    ({"lr": 1e-4}, ["--lr", "--learning_rate"]),
    ({"optimizer": "client", "target": "deepspeed", "lr": 1e-4}, ["--optimizer client", "--lr"]),
    ({"optimizer": "client", "scheduler": "warmup"}, ["--scheduler warmup", "--optimizer client"]),
    ({"muon_lr": 0.1}, ["--muon-", "--optimizer muon"]),
    ({"stage": 3, "optimizer": "muon", "reduce_scatter": True}, ["--optimizer muon", "--reduce-scatter"]),
    ({"optimizer": "sgd", "betas": (0.9, 0.99)}, ["--betas"]),
    ({"optimizer": "adamw", "betas": (0.9,)}, ["--betas"]),
    ({"optimizer": "lion", "eps": 1e-8}, ["--eps", "--optimizer lion"]),
    ({"optimizer": "lion", "torch_adam": True}, ["--torch-adam", "--optimizer lion"]),
    (
        {"optimizer": "lamb", "precision": "fp16", "loss_scale": 128.0},
        ["--optimizer lamb", "--loss-scale 128.0"],
    ),
    ({"target": "deepspeed", "scheduler": "cosine"}, ["--scheduler cosine", "--total-steps"]),
    ({"warmup_steps": 5}, ["--warmup-steps", "--scheduler"]),
    (
        {"optimizer": "adamw", "scheduler": "linear", "min_lr_ratio": 0.1},
        ["--min-lr-ratio", "--scheduler cosine"],
    ),
    (
        {"target": "deepspeed", "warmup_steps": 9, "total_steps": 9},
        ["--warmup-steps 9", "--total-steps 9"],
    ),
    ({"compute_grad_norm": False}, ["--no-compute-grad-norm", "--gradient-clipping 0"]),
    (
        {"compute_grad_norm": False, "gradient_clipping": 0.0, **CPU},
        ["--no-compute-grad-norm", "--offload-optimizer"],
    ),
    (
        {
            "stage": 1,
            "compute_grad_norm": False,
            "gradient_clipping": 0.0,
            "precision": "bf16",
            "grad_accum_dtype": "fp32",
        },
        ["--no-compute-grad-norm", "--grad-accum-dtype fp32"],
    ),
    ({"prescale_gradients": True}, ["--prescale-gradients", "--no-reduce-scatter"]),
    ({"stage": 3, "gradient_allreduce_op": "sum"}, ["--gradient-allreduce-op sum", "--zero 3"]),
    ({"allgather_bucket_size": 7}, ["--allgather-bucket-size 7"]),
    ({"autotp": 2, "sequence_parallel": 2}, ["--autotp 2", "--sequence-parallel 2"]),
    ({"autotp": 4, "gpus": 6}, ["--gpus 6", "--autotp 4"]),
    ({"autoep": 4, "gpus": 6}, ["--gpus 6", "--autoep 4"]),
    ({"sequence_parallel": 2, "target": "deepspeed"}, ["--sequence-parallel 2", "--gpus"]),
    ({**MIXED, "qgz": True}, ["--autoep 2", "--qgz"]),
    ({**MIXED, "sequence_parallel": 2}, ["--autoep 2", "--sequence-parallel 2"]),
    ({"autoep": 2, "autotp": 2, **COMPILED}, ["--autoep", "--autotp", "--deepcompile"]),
    (
        {"autotp": 2, "vocab_parallel_lm_head": None, "vocab_parallel_loss": "liger"},
        ["--vocab-parallel-loss", "--vocab-parallel-lm-head"],
    ),
    ({"stage": 0, **COMPILED}, ["--deepcompile", "--zero 0"]),
    ({**COMPILED, "compile_passes": ("autosp",)}, ["--compile-passes autosp", "--zero 1"]),
    ({**COMPILED, "compile_passes": ("autotp",)}, ["--compile-passes autotp", "--autotp"]),
    ({**COMPILED, "autotp": 2, "compile_passes": ("autotp", "z1")}, ["--compile-passes autotp"]),
    ({**COMPILED, "compile_offload_activation": True}, ["--compile-offload-activation", "--zero 3"]),
    (
        {"stage": 3, **COMPILED, **CPU, "compile_offload_states": True},
        ["--compile-offload-states", "--offload-optimizer"],
    ),
    (
        {"stage": 3, **COMPILED, **CPU, "offload_param": "cpu", "compile_offload_activation": True},
        ["--compile-offload-activation", "--offload-param cpu"],
    ),
    ({**COMPILED, **CPU, "zenflow": True}, ["--deepcompile", "--zenflow"]),
    ({"job_name": "x"}, ["--job-name x", "--tensorboard"]),
    # Declared with the options: what needs what, what belongs to a stage, choices and bounds.
    ({"stage": 2, "hpz": 4}, ["--hpz", "--zero 2", "--zero 3"]),
    ({"stage": 0, "overlap_comm": True}, ["--overlap-comm", "--zero 0"]),
    ({"stage": 3, "round_robin_gradients": True}, ["--round-robin-gradients", "--zero 1 or 2"]),
    ({"zenflow_topk_ratio": 0.2}, ["--zenflow-topk-ratio", "--zenflow"]),
    ({"bf16_optimizer_states": True}, ["--bf16-optimizer-states", "--bf16-master-weights"]),
    ({"compile_passes": ("z3",)}, ["--compile-passes", "--deepcompile"]),
    ({"autotp_model": "llama"}, ["--autotp-model", "--autotp"]),
    ({"precision": "fp8"}, ["--precision", "bf16, fp16, fp32"]),
    ({"micro_batch_size": 0}, ["--micro-batch-size", "0 is less than 1"]),
    ({"offload_ratio": 1.5}, ["--offload-ratio", "1.5 is more than 1"]),
    ({"optimizer": "adamw", "lr": float("nan")}, ["--lr"]),
    ({"gradient_clipping": float("inf")}, ["--gradient-clipping", "no number"]),
    ({"autotp": 0, "gpus": 8}, ["--autotp", "0 is less than 1"]),
    ({"optimizer": "adamw", "betas": (0.9, 1.0)}, ["--betas", "below 1"]),
    ({"global_batch_size": 9, "micro_batch_size": 4}, ["--global-batch-size 9", "--micro-batch-size"]),
    ({"global_batch_size": 12, "gpus": 8}, ["--global-batch-size 12", "--gpus"]),
    (
        {"global_batch_size": 16, "micro_batch_size": 4, "accumulation": 2, "gpus": 8},
        ["--global-batch-size 16", "--accumulation"],
    ),
]


@pytest.mark.parametrize(
    ("asked", "named"), EXAMPLES, ids=lambda value: " ".join(value) if isinstance(value, dict) else ""
)
def test_incompatible_options_are_refused_by_flag(asked, named):
    with pytest.raises(UsageError) as error:
        generate(ZeroSpec(**asked))
    assert [flag for flag in named if flag not in str(error.value)] == []
    assert "{" not in str(error.value)


def test_every_rule_has_an_example():
    met = set()
    for asked, _ in EXAMPLES:
        try:
            generate(ZeroSpec(**asked))
        except UsageError as error:
            met |= {rule.message for rule in RULES if speaks(rule, error)}
    assert {rule.message for rule in RULES} - met == set()


def speaks(rule, error: UsageError) -> bool:
    pattern = "".join(
        ".*" if part.startswith("{") else re.escape(part) for part in re.split(r"(\{\w+\})", rule.message)
    )
    return re.fullmatch(pattern, error.message) is not None


OTHERS = {
    "--learning_rate", "--warmup_steps", "--max_steps", "--muon-", "--offload", "--aio-", "--per-head-muon",
}  # fmt: skip


def test_rule_messages_name_existing_flags():
    flags = {flag_of(name) for name in options()}
    flags |= {flag.replace("--", "--no-", 1) for flag in flags} | OTHERS
    for rule in RULES:
        for word in re.findall(r"--[a-z][a-z0-9_-]*", f"{rule.message} {rule.fix}"):
            assert word in flags, rule.message


def test_stage_bound_options_exist():
    assert set(STAGES_OF_OPTION) <= set(options())


def test_bf16_on_gpu_without_bf16_is_refused():
    with pytest.raises(UsageError, match=r"--precision bf16 and --gpu v100: Tesla V100 has no bf16"):
        generate(ZeroSpec(precision="bf16", gpu="v100"), facts=HardwareFacts(gpu=lookup("v100")))


def test_rules_accept_default_specs():
    for stage in range(4):
        for target in ("trainer", "deepspeed"):
            spec = ZeroSpec(stage=stage, target=target)
            check(spec, "auto")
            assert not any(rule.when(RuleContext(spec=spec, precision="auto")) for rule in RULES)
