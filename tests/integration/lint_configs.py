"""Configs for the linter's tests: good ones, which DeepSpeed or the Trainer runs, and bad ones with their code."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]
MICRO = {"train_micro_batch_size_per_gpu": 4}
AUTO: Config = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
}
ADAMW = {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}}
AUTO_ADAMW = {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")}
AUTO_WARMUP = {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}
FP16 = {
    "enabled": True,
    "auto_cast": False,
    "loss_scale": 0,
    "initial_scale_power": 16,
    "loss_scale_window": 1000,
    "hysteresis": 2,
    "consecutive_hysteresis": False,
    "min_loss_scale": 1,
}


def zero(stage: int, **keys: Any) -> Config:
    return {"zero_optimization": {"stage": stage, **keys}}


GOOD: list[Config] = [
    {"train_batch_size": 8, "steps_per_print": 2000, "optimizer": ADAMW},
    {**MICRO, "gradient_accumulation_steps": 2, "train_batch_size": 8},
    {**MICRO, **zero(0)},
    {
        **MICRO,
        "gradient_clipping": 1.0,
        "prescale_gradients": False,
        "wall_clock_breakdown": False,
        "fp16": FP16,
    },
    {
        **MICRO,
        **zero(1, reduce_bucket_size=5e8),
        "bf16": {"enabled": True, "check_grad_overflow": True},
        "optimizer": ADAMW,
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 3e-5, "warmup_num_steps": 500}},
    },
    {
        **MICRO,
        **zero(
            2,
            allgather_partitions=True,
            allgather_bucket_size=2e8,
            overlap_comm=True,
            reduce_scatter=True,
            reduce_bucket_size=2e8,
            contiguous_gradients=True,
            offload_optimizer={"device": "cpu", "pin_memory": True},
        ),
    },
    {
        **MICRO,
        **zero(
            3,
            offload_optimizer={"device": "nvme", "nvme_path": "/local_nvme", "buffer_count": 4, "ratio": 0.5},
            offload_param={
                "device": "nvme",
                "nvme_path": "/local_nvme",
                "buffer_size": 1e8,
                "max_in_cpu": 1e9,
            },
            stage3_max_live_parameters=1e9,
            stage3_prefetch_bucket_size=5e8,
            stage3_gather_16bit_weights_on_model_save=True,
            zero_hpz_partition_size=8,
            zero_quantized_weights=True,
            zero_quantized_gradients=True,
            leaf_module={"classes": ["a.B"], "names": "gate"},
        ),
        "aio": {"block_size": 262144, "queue_depth": 32, "single_submit": False, "overlap_events": True},
    },
    {**MICRO, **zero(2, cpu_offload=True, cpu_offload_use_pin_memory=True)},
    {
        **MICRO,
        **zero(3, cpu_offload=True, cpu_offload_param=True, stage3_gather_fp16_weights_on_model_save=True),
    },
    {
        **MICRO,
        **zero(2, offload_optimizer={"device": "cpu"}, zenflow={"topk_ratio": 0.05, "update_interval": 4}),
    },
    {
        **MICRO,
        **zero(1),
        "bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True},
    },
    {**MICRO, "zero_optimization": True, "allgather_size": 500000000},
    {**MICRO, "bfloat16": {"enabled": True}},
    {**MICRO, "bf16": None, "bfloat16": {"enabled": True}},
    {**MICRO, "communication_data_type": "FP32", "gradient_allreduce_op": "Sum", "vocabulary_size": 1024},
    {**MICRO, "data_types": {"grad_accum_dtype": "fp32", "keep_in_fp32_modules": ["norm"]}},
    {
        **MICRO,
        "torch_autocast": {
            "enabled": True,
            "dtype": "bfloat16",
            "lower_precision_safe_modules": ["torch.nn.Linear"],
        },
    },
    {
        **MICRO,
        "flops_profiler": {
            "enabled": True,
            "profile_step": 1,
            "module_depth": -1,
            "top_modules": 1,
            "output_file": None,
        },
        "tensorboard": {"enabled": False, "output_path": "logs", "job_name": "j"},
        "wandb": {"enabled": False, "group": None, "team": "t", "project": "p"},
        "csv_monitor": {"enabled": False, "output_path": "csv"},
        "comet": {"enabled": False, "samples_log_interval": 5},
        "comms_logger": {
            "enabled": True,
            "verbose": False,
            "prof_all": True,
            "debug": False,
            "prof_ops": ["all_reduce"],
        },
        "timers": {"throughput": {"enabled": True, "synchronized": True}},
    },
    {
        **MICRO,
        "activation_checkpointing": {
            "partition_activations": True,
            "cpu_checkpointing": True,
            "number_checkpoints": 4,
        },
        "checkpoint": {
            "tag_validation": "Fail",
            "load_universal": True,
            "use_node_local_storage": False,
            "parallel_write": {"pipeline_stage": False},
            "writer": {"type": "python", "data_parallel": None},
        },
        "pipeline": {"stages": "auto", "partition": "best", "seed_layers": False},
    },
    {
        **MICRO,
        "data_efficiency": {
            "enabled": True,
            "seed": 1234,
            "data_routing": {"enabled": True, "random_ltd": {"enabled": True, "total_layer_num": 24}},
            "data_sampling": {
                "enabled": True,
                "num_epochs": 1,
                "num_workers": 0,
                "curriculum_learning": {
                    "enabled": True,
                    "curriculum_metrics": {"seqlen": {"index_to_sample_path": "p"}},
                },
                "dynamic_batching": {"enabled": True, "max_tokens": 1024, "min_batch_size": 1},
            },
        },
    },
    {**MICRO, "compile": {"deepcompile": True, "offload_activation": False, "passes": ["z3"]}},
    {**MICRO, "tensor_parallel": {"autotp_size": 1, "tp": {"tp_size": 1}, "preset_model": "llama"}},
    {**MICRO, "expert_parallel": {"enabled": False, "autoep_size": 1, "load_balance_coeff": None}},
    {
        **MICRO,
        "hybrid_engine": {"enabled": False, "max_out_tokens": 512},
        "weight_quantization": {"num_bits": 8},
    },
    {
        **MICRO,
        "autotuning": {
            "enabled": False,
            "arg_mappings": {"train_micro_batch_size_per_gpu": "--b"},
            "model_info": None,
        },
    },
    # the Trainer's
    {**AUTO, **zero(0), "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}},
    {**AUTO, **zero(1, reduce_bucket_size="auto"), "optimizer": AUTO_ADAMW},
    {
        **AUTO,
        **zero(
            2,
            overlap_comm=True,
            reduce_bucket_size="auto",
            offload_optimizer={"device": "cpu", "pin_memory": True},
        ),
        "bf16": {"enabled": "auto"},
        "fp16": {**FP16, "enabled": "auto"},
        "optimizer": AUTO_ADAMW,
        "scheduler": {"type": "WarmupDecayLR", "params": {**AUTO_WARMUP, "total_num_steps": "auto"}},
        "steps_per_print": 2000,
        "wall_clock_breakdown": False,
    },
    {
        **AUTO,
        **zero(
            3,
            offload_optimizer={"device": "none", "pin_memory": True},
            offload_param={"device": "none"},
            sub_group_size=1e9,
            reduce_bucket_size="auto",
            stage3_prefetch_bucket_size="auto",
            stage3_param_persistence_threshold="auto",
            stage3_max_live_parameters=1e9,
            stage3_max_reuse_distance=1e9,
            stage3_gather_16bit_weights_on_model_save=True,
        ),
        "fp16": {"enabled": "auto", "loss_scale": 0},
        "activation_checkpointing": {"partition_activations": False},
        "comms_logger": {"enabled": False},
        "scheduler": {"type": "WarmupLR", "params": AUTO_WARMUP},
    },
    {**AUTO, **zero(3, stage3_gather_16bit_weights_on_model_save="auto", offload_param={"device": "auto"})},
    {
        "train_micro_batch_size_per_gpu": "auto",
        "zero_optimization": {"stage": "auto"},
        "checkpoint": {"load_universal": True},
    },
]

BAD: list[tuple[str, Config]] = [
    ("batch_missing", {}),
    ("batch_missing", {"gradient_accumulation_steps": 4}),
    ("batch_mismatch", {**MICRO, "train_batch_size": 9}),
    ("batch_mismatch", {**MICRO, "train_batch_size": 16, "gradient_accumulation_steps": 2}),
    ("batch_mismatch", {"train_batch_size": 0}),
    ("batch_mismatch", {**MICRO, "gradient_accumulation_steps": -1}),
    ("wrong_type", {"train_batch_size": "8"}),
    ("wrong_type", {"train_batch_size": "auto"}),
    ("unknown_key", {**MICRO, **zero(2, overlap_com=True)}),
    ("unknown_key", {**MICRO, "bf16": {"enabled": True, "loss_scale": 0, "hysteresis": 2}}),
    ("unknown_key", {**MICRO, **zero(3, offload_param={"device": "cpu", "pipeline_read": True})}),
    ("unknown_key", {**MICRO, **zero(2, cpu_offload_params=True)}),
    ("given_twice", {**MICRO, **zero(2, cpu_offload=True, offload_optimizer={"device": "cpu"})}),
    ("given_twice", {**MICRO, **zero(3, prefetch_bucket_size=1, stage3_prefetch_bucket_size=1)}),
    ("not_a_choice", {**MICRO, **zero(4)}),
    ("not_a_choice", {**MICRO, **zero(2, offload_optimizer={"device": "gpu"})}),
    ("not_a_choice", {**MICRO, "communication_data_type": "float16"}),
    ("not_a_choice", {**MICRO, "checkpoint": {"tag_validation": "maybe"}}),
    ("not_a_choice", {**MICRO, "torch_autocast": {"enabled": True, "dtype": "BF16"}}),
    ("out_of_range", {**MICRO, **zero(2, reduce_bucket_size=0)}),
    ("out_of_range", {**MICRO, **zero(3, offload_optimizer={"ratio": 1.5})}),
    ("out_of_range", {**MICRO, "fp16": {"enabled": True, "loss_scale_window": 0}}),
    ("out_of_range", {**MICRO, "fp16": {"loss_scale": -1}}),
    ("wrong_type", {**MICRO, **zero(2, overlap_comm="maybe")}),
    ("wrong_type", {**MICRO, **zero(2, reduce_bucket_size="5e8")}),
    ("wrong_type", {**MICRO, "wall_clock_breakdown": "false"}),
    ("not_an_object", {**MICRO, "fp16": True}),
    ("not_an_object", {**MICRO, "optimizer": "AdamW"}),
    ("not_an_object", {**MICRO, **zero(2, offload_optimizer="cpu")}),
    ("needs_stage", {**MICRO, **zero(2, offload_optimizer={"device": "cpu", "ratio": 0.5})}),
    ("needs_stage", {**MICRO, **zero(3, compute_grad_norm=False)}),
    ("needs_stage", {**MICRO, "bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}),
    ("needs_stage", {**MICRO, **zero(3), "gradient_allreduce_op": "sum"}),
    ("needs_key", {**MICRO, **zero(1), "bf16": {"enabled": True, "bf16_optimizer_states": True}}),
    (
        "needs_key",
        {**MICRO, "data_efficiency": {"data_sampling": {"curriculum_learning": {"enabled": True}}}},
    ),
    ("fp16_and_bf16", {**MICRO, "fp16": {"enabled": True}, "bf16": {"enabled": True}}),
    ("removed_key", {**MICRO, **zero(3, mics_shard_size=4)}),
    *[
        ("removed_key", {**MICRO, name: {"enabled": False}})
        for name in (
            "nebula",
            "compression_training",
            "amp",
            "quantize_training",
            "sparse_gradients",
            "eigenvalue",
            "sparse_attention",
            "elasticity",
            "graph_harvesting",
            "curriculum_learning",
            "progressive_layer_drop",
        )
    ],
]

# DeepSpeed converts these texts, and the Trainer compares them as they are, whatever its flags say.
BAD_FOR_TRAINER: list[tuple[str, Config]] = [
    ("trainer_stops", {**AUTO, **zero(2), name: {"enabled": text}})
    for name in ("bf16", "fp16")
    for text in ("true", "false", "1")
]

# text, does the Trainer run it, does DeepSpeed
PLAIN = '"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 2}'
TEXTS: list[tuple[str, bool, bool]] = [
    ("{" + PLAIN + "}", True, True),
    ("\n\n{" + PLAIN + "}\n", True, True),
    ("{// ZeRO\n" + PLAIN + "}", False, True),
    ("{# ZeRO\n" + PLAIN + "}", False, True),
    ("{/* ZeRO */" + PLAIN + "}", False, True),
    ("{" + PLAIN + ",}", False, True),
    ("{" + PLAIN, False, False),
    ("{" + PLAIN + "}}", False, False),
    ("[" + "]", False, False),
    ("", False, False),
    ("{" + PLAIN + ', "bf16": {"enabled": Tru}}', False, False),
]
