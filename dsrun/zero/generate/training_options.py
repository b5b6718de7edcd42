"""The options about the optimizer, the batch, parallelism, compilation, checkpoints and observation."""

from __future__ import annotations

from dataclasses import dataclass

from dsrun.zero.generate.options import DTYPES, ZERO, option

OPTIMIZERS = ("adamw", "adam", "lion", "adagrad", "lamb", "sgd", "muon", "client")
SCHEDULERS = ("none", "warmup", "linear", "cosine")
# deepspeed/module_inject/autotp_config.py, AutoTPPresets.get_preset
TP_PRESETS = ("llama", "bloom", "chatglm", "mixtral", "deepseek_v2", "qwen2", "phi3")


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """How weights are updated, and on how many samples."""

    optimizer: str | None = option(
        None,
        "optimizer; client: the program brings its own. Default: AdamW, from the Trainer where it can",
        group="optimizer",
        choices=OPTIMIZERS,
    )
    lr: float | None = option(None, "learning rate", group="optimizer", least=0)
    betas: tuple[float, ...] | None = option(
        None, "Adam's two decay rates", group="optimizer", metavar="B1 B2", least=0, most=1
    )
    eps: float | None = option(None, "term that keeps Adam from dividing by 0", group="optimizer", least=0)
    weight_decay: float | None = option(None, "weight decay", group="optimizer", least=0)
    torch_adam: bool | None = option(
        None, "PyTorch's AdamW instead of DeepSpeed's fused one, which must be compiled", group="optimizer"
    )
    muon_lr: float | None = option(
        None, "Muon's learning rate for matrices; --lr is for the rest", group="optimizer", least=0
    )
    muon_momentum: float | None = option(None, "Muon's momentum", group="optimizer", least=0, most=1)
    muon_ns_method: str | None = option(
        None,
        "Newton-Schulz method of Muon",
        group="optimizer",
        sets="optimizer.params.ns_method",
        choices=("gram", "standard"),
    )
    per_head_muon: bool = option(
        False,
        "orthogonalise attention projections head by head",
        group="optimizer",
        sets="optimizer.params.per_head_muon",
    )
    muon_momentum_in_memory: bool = option(
        False,
        "keep Muon's momentum in memory when optimizer states go to NVMe",
        group="optimizer",
        sets=f"{ZERO}.save_muon_momentum_buffer_in_memory",
    )
    scheduler: str | None = option(
        None,
        "learning rate after the warm-up: constant (warmup), falling in a line or along a cosine",
        group="optimizer",
        choices=SCHEDULERS,
    )
    warmup_steps: int | None = option(None, "steps of warm-up", group="optimizer", least=1)
    warmup_type: str = option("linear", "shape of the warm-up", group="optimizer", choices=("linear", "log"))
    total_steps: int | None = option(None, "optimizer steps of the whole run", group="optimizer", least=1)
    min_lr_ratio: float | None = option(
        None, "where the cosine ends, as a share of the learning rate", group="optimizer", least=0, most=1
    )
    gradient_clipping: float | None = option(
        None, "largest norm of all gradients; 0: no clipping", group="optimizer", least=0
    )
    gradient_allreduce_op: str | None = option(
        None,
        "average or add gradients over the ranks",
        group="optimizer",
        sets="gradient_allreduce_op",
        choices=("mean", "sum"),
    )
    prescale_gradients: bool = option(
        False, "divide gradients before they are reduced", group="optimizer", sets="prescale_gradients"
    )
    gradient_predivide_factor: float | None = option(
        None,
        "what gradients are divided by before they are reduced",
        group="optimizer",
        sets="gradient_predivide_factor",
        least=0.000001,
    )

    # batch
    global_batch_size: int | None = option(
        None, "samples per optimizer step over all GPUs", group="batch", least=1
    )
    micro_batch_size: int | None = option(None, "samples per GPU and forward pass", group="batch", least=1)
    accumulation: int | None = option(
        None,
        "forward passes per optimizer step",
        group="batch",
        aliases=("gradient_accumulation_steps",),
        least=1,
    )
    gpus: int | None = option(None, "GPUs (ranks) of the run, all nodes together", group="batch", least=1)


@dataclass(frozen=True, kw_only=True)
class ParallelOptions:
    """Parallelism beyond data, and compilation."""

    autotp: int = option(
        1,
        "AutoTP: GPUs that share each layer by tensor parallelism",
        group="parallel",
        sets="tensor_parallel.autotp_size",
        metavar="GPUS",
        least=1,
    )
    autotp_model: str | None = option(
        None,
        "how AutoTP splits the layers; default: the model's own plan",
        group="parallel",
        sets="tensor_parallel.preset_model",
        needs="autotp",
        choices=TP_PRESETS,
    )
    autotp_overlap: bool = option(
        False,
        "overlap AutoTP's all-reduces with computing",
        group="parallel",
        sets="tensor_parallel.tp_overlap_comm",
        needs="autotp",
    )
    vocab_parallel_lm_head: bool | None = option(
        None,
        "shard the vocabulary of the output layer too",
        group="parallel",
        sets="tensor_parallel.vocab_parallel_lm_head",
        needs="autotp",
    )
    vocab_parallel_loss: str | None = option(
        None,
        "who computes the loss over the sharded vocabulary",
        group="parallel",
        sets="tensor_parallel.vocab_parallel_ce_backend",
        needs="vocab_parallel_lm_head",
        choices=("torch", "liger"),
    )
    sequence_parallel: int = option(
        1, "Ulysses: GPUs that share one sequence", group="parallel", metavar="GPUS", least=1
    )
    sequence_parallel_dtype: str | None = option(
        None,
        "format in which sequence-parallel gradients are reduced",
        group="parallel",
        sets="seq_parallel_communication_data_type",
        needs="sequence_parallel",
        choices=DTYPES,
    )
    autoep: int = option(
        1,
        "AutoEP: GPUs that share the experts of a mixture-of-experts model",
        group="parallel",
        sets="expert_parallel.autoep_size",
        along={"expert_parallel.enabled": True},
        metavar="GPUS",
        least=1,
    )
    autoep_model: str | None = option(
        None,
        "AutoEP's preset of the model",
        group="parallel",
        sets="expert_parallel.preset_model",
        needs="autoep",
        metavar="NAME",
    )

    # compile
    deepcompile: bool = option(
        False,
        "DeepCompile: the compiler schedules ZeRO's communication; the program must call engine.compile()",
        group="compile",
        sets="compile.deepcompile",
    )
    compile_passes: tuple[str, ...] = option(
        (),
        "DeepCompile's passes: z1, z3, autosp (sequence) or autotp (tensor parallelism)",
        group="compile",
        sets="compile.passes",
        needs="deepcompile",
        choices=("z1", "z3", "autosp", "autotp"),
    )
    compile_offload_activation: bool = option(
        False,
        "move saved activations to host memory as the memory asks (ZeRO 3)",
        group="compile",
        sets="compile.offload_activation",
        along={"compile.offload_activation_pin_memory": True},
        needs="deepcompile",
    )
    compile_offload_states: bool = option(
        False,
        "move optimizer states to host memory between steps (ZeRO 3)",
        group="compile",
        sets="compile.offload_opt_states",
        needs="deepcompile",
    )
    compile_offload_parameters: bool = option(
        False,
        "move parameters to host memory between uses (ZeRO 3)",
        group="compile",
        sets="compile.offload_parameters",
        needs="deepcompile",
    )
    compile_free_activation: bool = option(
        False,
        "free large activations as early as the graph allows",
        group="compile",
        sets="compile.free_activation",
        needs="deepcompile",
    )
    compile_double_buffer: bool | None = option(
        None,
        "two reduce buffers, so that filling one overlaps sending the other",
        group="compile",
        sets="compile.double_buffer",
        needs="deepcompile",
    )
    compile_symmetric_memory: bool = option(
        False,
        "gather through symmetric memory (NVLink)",
        group="compile",
        sets="compile.symmetric_memory",
        needs="deepcompile",
    )
