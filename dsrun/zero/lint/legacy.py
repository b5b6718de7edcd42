"""Keys of yesterday: what became of each. Reasons are our own words for what the DeepSpeed releases did."""

from __future__ import annotations

BATCH = "set train_batch_size, train_micro_batch_size_per_gpu and gradient_accumulation_steps instead"

# Keys that DeepSpeed refuses: why, and what to do.
REMOVED: dict[str, tuple[str, str]] = {
    "nebula": ("Nebula checkpointing was removed", "leave the block out: checkpoints are written by DeepSpeed itself"),
    "compression_training": ("the compression library was removed", "leave the block out"),
    "amp": ("NVIDIA Apex was removed", 'leave it out and use "bf16": {"enabled": true} (or fp16, or torch_autocast)'),
    "quantize_training": ("quantised training (MoQ) was removed", "leave the block out"),
    "sparse_gradients": ("the switch was removed", "leave it out; nn.Embedding(sparse=True) needs no key"),
    "eigenvalue": ("it belonged to quantised training, which was removed", "leave the block out"),
    "sparse_attention": ("sparse attention was removed", "leave the block out; choose the model's own attention"),
    "elasticity": ("elastic training was removed", f"leave the block out and {BATCH}"),
    "graph_harvesting": ("CUDA graph harvesting was removed", "leave it out; `compile` has DeepCompile"),
    "curriculum_learning": (
        "the block at the top level was removed",
        "leave it out, or move it into data_efficiency.data_sampling",
    ),
    "progressive_layer_drop": ("progressive layer dropping was removed", "leave the block out"),
    "mics_shard_size": ("MiCS was removed", "leave it out; zero_hpz_partition_size keeps shards inside a node"),
    "mics_hierarchical_params_gather": ("MiCS was removed", "leave it out"),
    "zeropp_loco_param": ("LoCo was removed", "leave it out; zero_quantized_gradients works without it"),
}
# Keys of older releases that DeepSpeed no longer knows.
REMOVED_SINCE: dict[str, tuple[str, str]] = {
    "cpu_offload_params": ("never was a key of a DeepSpeed release", 'use "offload_param": {"device": "cpu"}'),
    "fp32_allreduce": ("it is gone and ignored", 'use "communication_data_type": "fp32"'),
    "allreduce_always_fp32": ("it is gone and ignored", 'use "communication_data_type": "fp32"'),
    "disable_gradient_allreduce": ("it is gone and ignored", "leave it out"),
    "scheduler_params": ("it is ignored", 'write "scheduler": {"type": …, "params": {…}}'),
}
# Keys of the `compile` block of DeepSpeed 0.14, which handed them to torch.compile.
OLD_COMPILE = ("enabled", "disable", "backend", "kwargs")
REMOVED_FROM_COMPILE = (
    "torch.compile is asked for by the program now",
    "leave it out; call engine.compile(), or start the Trainer with --torch_compile",
)
# Keys of other names in older releases, which DeepSpeed now ignores or refuses.
RENAMED = {("aio", "thread_count"): "intra_op_parallelism"}
# Old names that still work: path -> (today's name, what to write).
LEGACY: dict[str, tuple[str, str]] = {
    "zero_optimization.cpu_offload": ("offload_optimizer", 'use "offload_optimizer": {"device": "cpu"}'),
    "zero_optimization.cpu_offload_param": ("offload_param", 'use "offload_param": {"device": "cpu"}'),
    "zero_optimization.cpu_offload_use_pin_memory": (
        "pin_memory in offload_optimizer and offload_param, and does nothing any more",
        'use "pin_memory" in those blocks',
    ),
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": (
        "stage3_gather_16bit_weights_on_model_save",
        "use stage3_gather_16bit_weights_on_model_save",
    ),
    "bfloat16": ("bf16", "rename it to bf16: the HF Trainer does not read bfloat16"),
}
# Optimizers that DeepSpeed had: name in lower case -> why it is gone, and today's choice.
REMOVED_OPTIMIZERS: dict[str, tuple[str, str]] = {
    "onebitadam": ("the 1-bit optimizers were removed", "AdamW"),
    "zerooneadam": ("the 1-bit optimizers were removed", "AdamW"),
    "onebitlamb": ("the 1-bit optimizers were removed", "Lamb"),
    "cpuadam": ("it never was a name of its own", "AdamW"),
    "fusedadam": ("it is a class, not a name", "AdamW"),
    "deepspeedcpuadam": ("it is a class, not a name", "AdamW"),
}
