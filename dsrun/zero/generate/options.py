"""The options of a DeepSpeed configuration about memory: ZeRO, offload, communication and number formats.

How one is declared is in `option`; the rest of them are in `dsrun.zero.generate.training_options`, and
`dsrun.zero.generate.spec.ZeroSpec` holds them all. The command line, --explain, the rules that need another flag and
docs/config.md are derived from the declarations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Offload = Literal["none", "cpu", "nvme"]
PLACES: tuple[Offload, ...] = ("none", "cpu", "nvme")
STAGES = (0, 1, 2, 3)
DTYPES = ("bf16", "fp16", "fp32")
ZERO = "zero_optimization"


def option(
    default: Any,
    help: str,
    *,
    group: str,
    flag: str | None = None,
    sets: str | None = None,
    needs: str | None = None,
    along: dict[str, Any] | None = None,
    choices: tuple[str, ...] | None = None,
    least: float | None = None,
    most: float | None = None,
    metavar: str | None = None,
    aliases: tuple[str, ...] = (),
) -> Any:
    """Declare one option.

    `flag` is its name on the command line where that is not the field's. `sets` is the key, blocks joined by
    dots, that gets the value when it is not the default; `along` are keys written beside it. `needs` names the
    field without which the option does nothing. `least` and `most` bound a number, both included.
    """
    meta = {
        "help": help,
        "group": group,
        "flag": flag,
        "sets": sets,
        "needs": needs,
        "along": along or {},
        "choices": choices,
        "least": least,
        "most": most,
        "metavar": metavar,
        "aliases": aliases,
    }
    return field(default=default, metadata=meta)


@dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """What is sharded and where it lives."""

    # for whom
    target: str = option(
        "trainer",
        "trainer: the Hugging Face Trainer fills what says auto; deepspeed: every number is written",
        group="target",
        flag="for",
        choices=("trainer", "deepspeed"),
    )
    preset: str = option(
        "balanced",
        "how much GPU memory buffers may take: conservative to fit, aggressive to be fast",
        group="target",
        choices=("conservative", "balanced", "aggressive"),
    )
    model: str | None = option(
        None,
        "model whose width sets the bucket sizes: a folder with config.json, or demo-t5 / demo-llama",
        group="target",
        metavar="NAME|DIR",
    )
    gpu: str | None = option(
        None,
        "GPU whose memory bounds the buckets and whose capability decides --precision auto, such as a100-80",
        group="target",
        metavar="NAME",
    )

    # zero
    stage: int = option(
        2,
        "1 shards optimizer states, 2 gradients too, 3 parameters too; 0 is plain data parallelism",
        group="zero",
        flag="zero",
        metavar="0|1|2|3",
    )
    reduce_bucket_size: int | None = option(
        None, "elements in one gradient bucket", group="zero", sets=f"{ZERO}.reduce_bucket_size", least=1
    )
    allgather_bucket_size: int | None = option(
        None,
        "elements gathered at a time after the step (ZeRO 1 and 2); even",
        group="zero",
        sets=f"{ZERO}.allgather_bucket_size",
        least=2,
    )
    overlap_comm: bool | None = option(
        None, "reduce gradients during the backward pass", group="zero", sets=f"{ZERO}.overlap_comm"
    )
    contiguous_gradients: bool | None = option(
        None,
        "copy gradients into one buffer as they come",
        group="zero",
        sets=f"{ZERO}.contiguous_gradients",
    )
    reduce_scatter: bool | None = option(
        None, "give each rank its share instead of all gradients", group="zero", sets=f"{ZERO}.reduce_scatter"
    )
    round_robin_gradients: bool | None = option(
        None,
        "spread the copies of offloaded gradients over the ranks (ZeRO 1 and 2)",
        group="zero",
        sets=f"{ZERO}.round_robin_gradients",
    )
    multi_rank_bucket_allreduce: bool | None = option(
        None,
        "join small buckets of several ranks into one all-reduce",
        group="zero",
        sets=f"{ZERO}.use_multi_rank_bucket_allreduce",
    )
    allgather_partitions: bool | None = option(
        None,
        "gather updated weights by all-gather rather than by broadcasts (ZeRO 1 and 2)",
        group="zero",
        sets=f"{ZERO}.allgather_partitions",
    )
    parameter_alignment: bool = option(
        False,
        "start each parameter at 16 bytes (ZeRO 1 and 2)",
        group="zero",
        sets=f"{ZERO}.parameter_alignment",
    )
    ignore_unused_parameters: bool | None = option(
        None,
        "go on when a parameter got no gradient (ZeRO 2)",
        group="zero",
        sets=f"{ZERO}.ignore_unused_parameters",
    )
    compute_grad_norm: bool | None = option(
        None,
        "compute the gradient norm; off saves a reduction without clipping (ZeRO 1 and 2)",
        group="zero",
        sets=f"{ZERO}.compute_grad_norm",
    )

    # zero3
    prefetch_bucket_size: int | None = option(
        None,
        "parameter elements fetched ahead of their use",
        group="zero3",
        sets=f"{ZERO}.stage3_prefetch_bucket_size",
        least=0,
    )
    param_persistence_threshold: int | None = option(
        None,
        "parameters smaller than this stay whole on every GPU",
        group="zero3",
        sets=f"{ZERO}.stage3_param_persistence_threshold",
        least=0,
    )
    model_persistence_threshold: int | None = option(
        None,
        "most elements that may stay whole in total",
        group="zero3",
        sets=f"{ZERO}.stage3_model_persistence_threshold",
        least=0,
    )
    max_live_parameters: int | None = option(
        None,
        "most gathered elements on one GPU at a time",
        group="zero3",
        sets=f"{ZERO}.stage3_max_live_parameters",
        least=0,
    )
    max_reuse_distance: int | None = option(
        None,
        "keep a gathered parameter that is used again within this many elements",
        group="zero3",
        sets=f"{ZERO}.stage3_max_reuse_distance",
        least=0,
    )
    sub_group_size: int | None = option(
        None,
        "elements of one slice of the optimizer step",
        group="zero3",
        sets=f"{ZERO}.sub_group_size",
        least=1,
    )
    gather_on_save: bool | None = option(
        None,
        "gather 16-bit weights when saving, so that from_pretrained can load them",
        group="zero3",
        sets=f"{ZERO}.stage3_gather_16bit_weights_on_model_save",
    )
    module_granularity_threshold: int | None = option(
        None,
        "fetch modules with fewer parameters per child than this as one",
        group="zero3",
        sets=f"{ZERO}.stage3_module_granularity_threshold",
        least=0,
    )
    all_reduce_for_fetch: bool = option(
        False,
        "fetch parameters by all-reduce, with less work on the host",
        group="zero3",
        sets=f"{ZERO}.stage3_use_all_reduce_for_fetch_params",
    )
    allgather_sequential: bool = option(
        False,
        "gather parameters one by one without a flat buffer: less memory, no prefetch",
        group="zero3",
        sets=f"{ZERO}.stage3_allgather_sequential",
    )
    memory_efficient_linear: bool | None = option(
        None,
        "linear layers that do not keep gathered weights for the backward pass",
        group="zero3",
        sets=f"{ZERO}.memory_efficient_linear",
    )
    leaf_modules: tuple[str, ...] = option(
        (),
        "module classes fetched as one, such as the expert block of a mixture of experts",
        group="zero3",
        sets=f"{ZERO}.leaf_module.classes",
        metavar="CLASS",
    )
    leaf_names: tuple[str, ...] = option(
        (),
        "names of modules fetched as one",
        group="zero3",
        sets=f"{ZERO}.leaf_module.names",
        metavar="NAME",
    )
    leaf_suffixes: tuple[str, ...] = option(
        (),
        "endings of names of modules fetched as one",
        group="zero3",
        sets=f"{ZERO}.leaf_module.name_suffixes",
        metavar="TEXT",
    )
    pipeline_loading: bool = option(
        False,
        "load a checkpoint part by part, with less host memory",
        group="zero3",
        sets=f"{ZERO}.pipeline_loading_checkpoint",
    )

    # zeropp
    hpz: int = option(
        1,
        "ZeRO++ hpZ: ranks (usually of one node) among which a second copy of the weights is sharded",
        group="zeropp",
        sets=f"{ZERO}.zero_hpz_partition_size",
        metavar="RANKS",
        least=1,
    )
    qwz: bool = option(
        False,
        "ZeRO++ qwZ: gather weights as 8-bit integers",
        group="zeropp",
        sets=f"{ZERO}.zero_quantized_weights",
    )
    qgz: bool = option(
        False,
        "ZeRO++ qgZ: reduce gradients as 4-bit integers",
        group="zeropp",
        sets=f"{ZERO}.zero_quantized_gradients",
    )
    quantized_frozen_weights: bool = option(
        False,
        "keep frozen weights as 8-bit integers, for LoRA",
        group="zeropp",
        sets=f"{ZERO}.zero_quantized_nontrainable_weights",
    )
