"""ZeroSpec: what can be asked of a DeepSpeed configuration by flags.

An option is declared once. The command line, --explain, the rules that need another flag and docs/config.md are derived
from the declarations. Every other key of DeepSpeed's JSON is set with --set (`dsrun.zero.generate.config`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, dataclass, fields
from functools import cache
from typing import Any, Literal

from dsrun import options as declared
from dsrun.options import option
from dsrun.zero.view import ZERO

Offload = Literal["none", "cpu", "nvme"]
PLACES: tuple[Offload, ...] = ("none", "cpu", "nvme")
STAGES = (0, 1, 2, 3)
DTYPES = ("bf16", "fp16", "fp32")
OPTIMIZERS = ("adamw", "adam", "lion", "adagrad", "lamb", "sgd", "muon", "client")
SCHEDULERS = ("none", "warmup", "linear", "cosine")

# The groups in the order of --help and of docs/config.md.
TITLES = {
    "target": "For whom",
    "zero": "ZeRO",
    "offload": "Offload",
    "zeropp": "ZeRO++",
    "precision": "Precision",
    "optimizer": "Optimizer",
    "batch": "Batch",
    "parallel": "Parallelism and compilation",
    "other": "Any other key",
}


@dataclass(frozen=True, kw_only=True)
class ZeroSpec:
    """What a DeepSpeed configuration is asked to do; `dsrun.zero.generate.config.generate` writes it.

    `key` is the key of the JSON that an option decides, blocks joined by dots; a `copied` option that differs from its
    default is written there as it is, with `along` beside it.
    """

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
        choices=("conservative", "balanced", "aggressive"),
    )
    model: str | None = option(
        None,
        "model whose width sets the buckets: a folder with config.json, or demo-t5 / demo-llama",
        metavar="NAME|DIR",
    )
    gpu: str | None = option(
        None,
        "GPU whose memory bounds the buckets and whose capability decides --precision auto, such as a100-80",
        metavar="NAME",
    )

    stage: int = option(
        2,
        "1 shards optimizer states, 2 gradients too, 3 parameters too; 0 is plain data parallelism",
        group="zero",
        key=f"{ZERO}.stage",
        flag="zero",
        metavar="0|1|2|3",
    )
    reduce_bucket_size: int | None = option(
        None, "elements in one gradient bucket", key=f"{ZERO}.reduce_bucket_size", copied=True, least=1
    )
    allgather_bucket_size: int | None = option(
        None,
        "elements gathered at a time after the step (ZeRO 1 and 2); even",
        key=f"{ZERO}.allgather_bucket_size",
        copied=True,
        least=2,
    )
    overlap_comm: bool | None = option(
        None, "reduce gradients during the backward pass", key=f"{ZERO}.overlap_comm", copied=True
    )

    offload_optimizer: Literal["none", "cpu", "nvme"] = option(
        "none",
        "keep optimizer states, and step, in host memory or on NVMe",
        group="offload",
        key=f"{ZERO}.offload_optimizer.device",
        choices=PLACES,
    )
    offload_param: Literal["none", "cpu", "nvme"] = option(
        "none", "keep parameters in host memory or on NVMe (ZeRO 3)", key=f"{ZERO}.offload_param.device", choices=PLACES
    )
    nvme_path: str | None = option(
        None,
        "folder on a local NVMe drive for what is offloaded to nvme",
        key=f"{ZERO}.offload_optimizer.nvme_path",
        metavar="DIR",
    )
    pin_memory: bool | None = option(
        None,
        "page-locked host memory: fast copies that overlap, never swapped out",
        key=f"{ZERO}.offload_optimizer.pin_memory",
    )
    super_offload: bool = option(
        False,
        "SuperOffload: step on the CPU while the backward pass runs, for Grace-Hopper and the like (ZeRO 3)",
        key=f"{ZERO}.offload_optimizer.super_offload",
        copied=True,
    )
    zenflow: bool = option(
        False,
        "ZenFlow: the GPU steps the few gradients that matter, the CPU the rest, less often",
        key=f"{ZERO}.zenflow",
    )

    hpz: int = option(
        1,
        "hpZ: ranks (usually of one node) among which a second copy of the weights is sharded (ZeRO 3)",
        group="zeropp",
        key=f"{ZERO}.zero_hpz_partition_size",
        copied=True,
        metavar="RANKS",
        least=1,
    )
    qwz: bool = option(
        False, "qwZ: gather weights as 8-bit integers (ZeRO 3)", key=f"{ZERO}.zero_quantized_weights", copied=True
    )
    qgz: bool = option(
        False, "qgZ: reduce gradients as 4-bit integers (ZeRO 3)", key=f"{ZERO}.zero_quantized_gradients", copied=True
    )

    precision: str = option(
        "auto",
        "format of weights and activations; auto: as the Trainer is told, or as the GPU can",
        group="precision",
        key="bf16.enabled",
        choices=("auto", *DTYPES),
    )
    torch_autocast: str = option(
        "none",
        "PyTorch's mixed precision: weights stay fp32, safe modules compute in this format",
        key="torch_autocast.enabled",
        choices=("none", "bf16", "fp16"),
    )
    bf16_master_weights: bool = option(
        False,
        "keep master weights, gradients and Adam's moments in bf16: half the memory, less exact",
        key="bf16.bf16_master_weights_and_grads",
        copied=True,
        along={"bf16.bf16_optimizer_states": True},
    )

    optimizer: str | None = option(
        None,
        "optimizer; client: the program brings its own. Default: AdamW, from the Trainer where it can",
        group="optimizer",
        key="optimizer.type",
        choices=OPTIMIZERS,
    )
    lr: float | None = option(None, "learning rate", key="optimizer.params.lr", least=0)
    betas: tuple[float, ...] | None = option(
        None, "Adam's two decay rates", key="optimizer.params.betas", metavar="B1 B2", least=0, most=1
    )
    eps: float | None = option(None, "term that keeps Adam from dividing by 0", key="optimizer.params.eps", least=0)
    weight_decay: float | None = option(None, "weight decay", key="optimizer.params.weight_decay", least=0)
    muon_lr: float | None = option(
        None, "Muon's learning rate for matrices; --lr is for the rest", key="optimizer.params.muon_lr", least=0
    )
    scheduler: str | None = option(
        None,
        "learning rate after the warm-up: constant (warmup), falling in a line or along a cosine",
        key="scheduler.type",
        choices=SCHEDULERS,
    )
    warmup_steps: int | None = option(None, "steps of warm-up", key="scheduler.params.warmup_num_steps", least=1)
    total_steps: int | None = option(
        None, "optimizer steps of the whole run", key="scheduler.params.total_num_steps", least=1
    )
    gradient_clipping: float | None = option(
        None, "largest norm of all gradients; 0: no clipping", key="gradient_clipping", least=0
    )

    global_batch_size: int | None = option(
        None, "samples per optimizer step over all GPUs", group="batch", key="train_batch_size", least=1
    )
    micro_batch_size: int | None = option(
        None, "samples per GPU and forward pass", key="train_micro_batch_size_per_gpu", least=1
    )
    accumulation: int | None = option(
        None,
        "forward passes per optimizer step",
        key="gradient_accumulation_steps",
        aliases=("gradient_accumulation_steps",),
        least=1,
    )
    gpus: int | None = option(None, "GPUs (ranks) of the run, all nodes together", least=1)

    autotp: int = option(
        1,
        "AutoTP: GPUs that share each layer by tensor parallelism",
        group="parallel",
        key="tensor_parallel.autotp_size",
        copied=True,
        metavar="GPUS",
        least=1,
    )
    sequence_parallel: int = option(
        1, "Ulysses: GPUs that share one sequence", key="sequence_parallel_size", metavar="GPUS", least=1
    )
    autoep: int = option(
        1,
        "AutoEP: GPUs that share the experts of a mixture-of-experts model",
        key="expert_parallel.autoep_size",
        copied=True,
        along={"expert_parallel.enabled": True},
        metavar="GPUS",
        least=1,
    )
    deepcompile: bool = option(
        False,
        "DeepCompile: the compiler schedules ZeRO's communication; the program must call engine.compile()",
        key="compile.deepcompile",
        copied=True,
    )
    activation_checkpointing: bool | None = option(
        None,
        "write the block that steers deepspeed.checkpointing; models of Transformers do not use it, their switch "
        "is the training argument --gradient_checkpointing",
        key="activation_checkpointing",
    )

    overrides: tuple[str, ...] = option(
        (),
        "any key of DeepSpeed's JSON: --set zero_optimization.stage3_max_live_parameters=1e8",
        group="other",
        flag="set",
        metavar="KEY=VALUE",
    )


@cache
def options() -> dict[str, Field[Any]]:
    """Every option by its field's name, in the order of its declaration."""
    return {each.name: each for each in fields(ZeroSpec)}


def flag_of(name: str) -> str:
    """The flag of a field as a user writes it."""
    return declared.flag_of(options()[name])


def given(spec: ZeroSpec) -> Iterator[tuple[Field[Any], Any]]:
    """The options that differ from their defaults, with their values."""
    for each in options().values():
        value = getattr(spec, each.name)
        if value != each.default:
            yield each, value


def as_typed(name: str, value: Any) -> str:
    """An option as it stands on the command line: "--zero 3", "--no-overlap-comm"."""
    flag = flag_of(name)
    if name == "overrides":
        return " ".join(f"{flag} {word}" for word in value)
    if isinstance(value, bool):
        return flag if value else flag.replace("--", "--no-", 1)
    words = " ".join(map(str, value)) if isinstance(value, tuple) else value
    return f"{flag} {words}"
