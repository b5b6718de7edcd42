"""Random DeepSpeed configurations for `python -m bench lint`: keys with right, borderline and wrong values."""

from __future__ import annotations

import itertools
import random
from typing import Any

USUAL = 0.96
"""Share of values that DeepSpeed takes by themselves: about half of all configurations have an error then."""
ON_OFF = ([True, False], ["true", 1, None])
COUNT = ([1000, 5e8, "1e5"], [0, 7, -1, 2.5, None])
# What is right by itself, and what is borderline or wrong.
TOP: dict[str, tuple[list[Any], list[Any]]] = {
    "gradient_clipping": ([0, 1.0, 0.5], [-1, "1.0", None, True]),
    "steps_per_print": ([1, 10, 10.0, None], [0, "10", -1, 0.5]),
    "prescale_gradients": ON_OFF,
    "gradient_predivide_factor": ([1, 1.0, 2.0], [0, "2", -1.0, 0.5]),
    "gradient_allreduce_op": (["average", "SUM", "sum"], ["mean", None, 1]),
    "communication_data_type": (["fp32", "bf16", "fp16", None], ["float32", "half", 16]),
    "sequence_parallel_size": ([1, 2], [0, "2", 3, -1, 1.0]),
    "wall_clock_breakdown": ON_OFF,
    "memory_breakdown": ON_OFF,
    "dump_state": ON_OFF,
    "sparse_gradients": ([], [False, "false", None]),
    "disable_allgather": ON_OFF,
    "seed": ([42], ["42", -1]),
    "log_level": (["ERROR", "error", "WARNING"], ["loud", 2, None]),
    "managed_gradient_accumulation": ([True], [False, "no"]),
    "zero_allow_untested_optimizer": ON_OFF,
    "zero_force_ds_cpu_optimizer": ([True, False], ["false"]),
    "tokenizer": (["x"], [1]),
    "learning_rate": ([], [1e-3]),
    "curriculum_learning": ([], [{"enabled": False}]),
    "progressive_layer_drop": ([], [{"enabled": True, "theta": 0.5, "gamma": 0.001}]),
    "eigenvalue": ([], [{"enabled": False}]),
    "zero_optimisation": ([], [{"stage": 1}]),
}
ZERO: dict[str, tuple[list[Any], list[Any]]] = {
    "reduce_scatter": ON_OFF,
    "overlap_comm": ON_OFF,
    "contiguous_gradients": ON_OFF,
    "allgather_partitions": ON_OFF,
    "round_robin_gradients": ON_OFF,
    "ignore_unused_parameters": ON_OFF,
    "use_multi_rank_bucket_allreduce": ON_OFF,
    "elastic_checkpoint": ([False], ["yes"]),
    "legacy_stage1": ([False], [True]),
    "compute_grad_norm": ([True], [False]),
    "reduce_bucket_size": COUNT,
    "allgather_bucket_size": ([1000, 5e8, 2], [0, 7, -1, "8", None]),
    "sub_group_size": ([1000, 1e9], [0, "1e9", -1]),
    "stage3_prefetch_bucket_size": ([0, 1000, 5e7], [-1, "1000", 2.5]),
    "stage3_param_persistence_threshold": ([0, 1000, 1e5], [-1, "10"]),
    "stage3_max_live_parameters": ([1000, 1e9], [-1, 0, "1e9"]),
    "stage3_max_reuse_distance": ([1000, 1e9], [-1, 0]),
    "stage3_gather_16bit_weights_on_model_save": ON_OFF,
    "zero_hpz_partition_size": ([1, 2], [0, 3, "2", -1]),
    "mics_shard_size": ([], [-1, "1"]),
    "memory_efficient_linear": ON_OFF,
    "stage3_reduce_bucket": ([], [1]),
}
BLOCKS: dict[str, list[Any]] = {
    "data_types": [{"grad_accum_dtype": each} for each in ("fp32", "bf16", "fp16", None, "half precision", 32)]
    + [{"param_dtype": each} for each in ("fp32", "bf16")],
    "flops_profiler": [{"enabled": True, "profile_step": each} for each in (1, "1", 100)] + [{"enabled": "yes"}],
    "timers": [{"throughput": {"enabled": False}}, {"throughput": {"enabled": "off", "synchronized": True}}],
    "torch_autocast": [{"enabled": each, "dtype": "bf16"} for each in (True, False)]
    + [{"enabled": True, "dtype": "x"}],
    "activation_checkpointing": [{"partition_activations": False}, {"number_checkpoints": "2"}],
    "checkpoint": [{"tag_validation": "Warn"}, {"tag_validation": "never"}, {"load_universal": False}],
    "csv_monitor": [{"enabled": False}, {"enabled": "off"}],
    "aio": [{"queue_depth": 8}, {"block_size": "1048576"}],
    "tensor_parallel": [{"autotp_size": 1}, {"autotp_size": 0}],
    "expert_parallel": [{"enabled": False}],
}
FP16 = [{"enabled": True}, {"enabled": True, "loss_scale": 128}, {"enabled": True, "loss_scale": "128"},
        {"enabled": True, "initial_scale_power": 4}, {"enabled": True, "initial_scale_power": "4"},
        {"enabled": True, "loss_scale_window": 0}, {"enabled": True, "hysteresis": 0}, {"enabled": "true"},
        {"enabled": True, "min_loss_scale": 0}, {"enabled": True, "fp16_master_weights_and_grads": True},
        {"enabled": True, "auto_cast": True}, {"enabled": True, "loss_scale": -1}, {"enabled": None}]  # fmt: skip
BF16 = [{"enabled": True}, {"enabled": True}, {"enabled": True, "check_grad_overflow": True}, {"enabled": False},
        {"enabled": True, "bf16_master_weights_and_grads": True}, {"enabled": "yes"}, True, {"enabled": True, "x": 1},
        {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True},
        {"enabled": True, "immediate_grad_update": False}]  # fmt: skip
ADAM = {"lr": ([1e-3, 0, 1], ["1e-3", "auto", -1, None]), "betas": ([[0.9, 0.999]], [[0.9], [0.9, 1.0], "0.9", 0.9]),
        "eps": ([1e-8], ["1e-8", [1e-8, 1e-8], -1e-8]), "weight_decay": ([0, 0.01], ["0.01", -0.1]),
        "amsgrad": ([True, False], []), "max_grad_norm": ([], [0, 1.0]), "momentum": ([], [0.9])}  # fmt: skip
OTHERS = [{"type": "SGD", "params": {"lr": 0.1}}, {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}},
          {"type": "SGD", "params": {"lr": 0.1, "betas": [0.9, 0.99]}}, {"type": "sgd", "params": {"lr": 0.1}},
          {"type": "RMSprop", "params": {"lr": 0.1}}, {"type": "Adagrad", "params": {"lr": 0.1, "lr_decay": 0.1}},
          {"type": "Adagrad"}, {"type": "SGD"}, {"type": "AdamW8", "params": {"lr": 1e-3}},
          {"type": "Adadelta", "params": {"lr": 1.0, "rho": 0.9}}, {"type": "SGD", "params": None}]  # fmt: skip
WARMUP = {"warmup_min_lr": ([0, 1e-5], ["0", None]), "warmup_max_lr": ([1e-3], ["1e-3", None, 0]),
          "warmup_num_steps": ([1, 2, 10], [0, 10.0, "2", "auto", -1]), "warmup_type": (["log", "linear"], ["exp"]),
          "total_num_steps": ([5, 100], [0, "5", None, 1]), "cos_min_ratio": ([0.1], ["0.1"]),
          "last_batch_iteration": ([-1], ["0"])}  # fmt: skip
SCHEDULES = {
    "WarmupLR": ["warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type", "last_batch_iteration"],
    "WarmupDecayLR": ["total_num_steps", "warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type"],
    "WarmupCosineLR": ["total_num_steps", "warmup_num_steps", "warmup_type", "cos_min_ratio"],
}
OTHER_SCHEDULES = [{"type": "StepLR", "params": {"step_size": 2}}, {"type": "StepLR", "params": {"step": 2}},
                   {"type": "OneCycle", "params": {"cycle_min_lr": 1e-5, "cycle_max_lr": 1e-3}},
                   {"type": "LRRangeTest", "params": {"lr_range_test_min_lr": 1e-4}}, {"type": "WarmupLinearLR"},
                   {"type": "LRRangeTest", "params": {"lr_range_test_step_size": 0}}, {"params": {}}, {"type": None},
                   {"type": "OneCycle", "params": {"cycle_min_lr": 1e-5}}, {"type": "WarmupLR"},
                   {"type": "ExponentialLR", "params": {"gamma": 0.9}}]  # fmt: skip
OFFLOADS = [{"device": "cpu"}, {"device": "none"}, {"device": "cpu", "pin_memory": True}, {"device": "nvme"}, {}, None,
            {"device": "gpu"}, {"device": "cpu", "ratio": 0.5}, {"device": "cpu", "ratio": 2},
            {"device": "cpu", "buffer_count": "4"}]  # fmt: skip


def configuration(seed: int, number: int) -> tuple[dict[str, Any], int]:
    """The configuration of that number and the ranks to give it to; the same for the same two."""
    chance = random.Random(f"{seed}/{number}")
    world = chance.choice((1, 2))
    drawn = (_drawn(chance, world) for _ in itertools.count())
    return next(made for made in drawn if not needs_gpu(made)), world


def _drawn(chance: random.Random, world: int) -> dict[str, Any]:
    made = _batch(chance, world) | _some(chance, TOP, 0.12)
    if chance.random() < 0.85:
        made["zero_optimization"] = _zero(chance)
    if chance.random() < 0.4:
        name, values = chance.choice((("bf16", BF16), ("fp16", FP16)))
        made[name] = chance.choice(values if chance.random() < 0.5 else values[:1])
    made |= {name: chance.choice(values) for name, values in BLOCKS.items() if chance.random() < 0.03}
    made["optimizer"] = _optimizer(chance)
    if chance.random() < 0.3:
        made["scheduler"] = _scheduler(chance)
    return made


def needs_gpu(config: dict[str, Any]) -> bool:
    """Whether DeepSpeed would compile or call what only GPUs have, or libaio: an engine here says nothing of it."""
    zero = config.get("zero_optimization")
    if not isinstance(zero, dict):
        return False
    offload = [zero.get(name) or {} for name in ("offload_optimizer", "offload_param")]
    return any(each.get("device") == "nvme" and each.get("nvme_path") for each in offload)


def _some(chance: random.Random, keys: dict[str, tuple[list[Any], list[Any]]], share: float) -> dict[str, Any]:
    made = {}
    for name, (right, wrong) in keys.items():
        if chance.random() < share and (values := wrong if chance.random() > USUAL else right):
            made[name] = chance.choice(values)
    return made


def _batch(chance: random.Random, world: int) -> dict[str, Any]:
    micro, steps = chance.choice((1, 2)), chance.choice((1, 1, 2, 3))
    names = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
    whole = dict(zip(names, (micro, steps, micro * steps * world), strict=True))
    if chance.random() > USUAL:
        whole[chance.choice(names)] = chance.choice((0, -1, "2", 1.0, 3, 7, None, "auto"))
    kept = chance.choice((names, names[:1], names[2:], names[:2], names[1:], names[::2]))
    return {name: whole[name] for name in kept}


def _zero(chance: random.Random) -> Any:
    if chance.random() < 0.04:
        return chance.choice((True, False, None, {}, {"stage": 4}, {"stage": "2"}, {"stage": -1}, {"stage": 1.0}))
    zero = {"stage": chance.choice((0, 1, 1, 2, 2, 3, 3))} | _some(chance, ZERO, 0.1)
    if zero["stage"] != 3 and chance.random() < 0.1:
        zero["zero_quantized_gradients"] = chance.choice((True, False))
    for name in ("offload_optimizer", "offload_param"):
        if chance.random() < 0.12:
            zero[name] = chance.choice(OFFLOADS if chance.random() < 0.4 else OFFLOADS[:2])
    return zero


def _optimizer(chance: random.Random) -> Any:
    if chance.random() < 0.08:
        return chance.choice(OTHERS)
    # torch's own Adam: DeepSpeed's would be compiled first.
    params = {"lr": 1e-3, "torch_adam": True} | _some(chance, ADAM, 0.08)
    return {"type": chance.choice(("AdamW", "AdamW", "Adam", "adam")), "params": params}


def _scheduler(chance: random.Random) -> Any:
    if chance.random() < 0.15:
        return chance.choice(OTHER_SCHEDULES)
    kind = chance.choice(list(SCHEDULES))
    params = _some(chance, {name: WARMUP[name] for name in SCHEDULES[kind]}, 0.75)
    return {"type": kind, "params": params}
