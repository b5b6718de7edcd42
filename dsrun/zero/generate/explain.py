"""What each key of a configuration does, and why it has this value."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from dsrun.zero.generate.blocks import HardwareFacts
from dsrun.zero.generate.config import build
from dsrun.zero.generate.options import ZERO
from dsrun.zero.generate.spec import ZeroSpec, options

VERSION = 1

# Keys that no option sets by itself; the help of the options explains the others.
DOES = {
    "train_batch_size": "samples per optimizer step over all ranks: micro batch × accumulation × ranks",
    "train_micro_batch_size_per_gpu": "samples per GPU and forward pass",
    "gradient_accumulation_steps": "forward passes per optimizer step",
    "gradient_clipping": "gradients are scaled down to this norm; 0 does not clip",
    "bf16.enabled": "weights, activations and gradients in bf16, master weights in fp32",
    "fp16.enabled": "weights, activations and gradients in fp16 with loss scaling, master weights in fp32",
    "torch_autocast.enabled": "PyTorch's mixed precision: weights stay fp32, safe modules compute lower",
    "torch_autocast.dtype": "the lower format of torch_autocast",
    f"{ZERO}.stage": "0 nothing sharded, 1 optimizer states, 2 gradients too, 3 parameters too",
    f"{ZERO}.offload_optimizer.device": "where optimizer states live and where the step runs",
    f"{ZERO}.offload_optimizer.pin_memory": "page-locked host memory for optimizer states",
    f"{ZERO}.offload_optimizer.nvme_path": "folder for optimizer states",
    f"{ZERO}.offload_optimizer.buffer_count": "tensors in flight to and from NVMe",
    f"{ZERO}.offload_param.device": "where parameters live when they are not used",
    f"{ZERO}.offload_param.pin_memory": "page-locked host memory for parameters",
    f"{ZERO}.offload_param.nvme_path": "folder for parameters",
    "optimizer.type": "the optimizer DeepSpeed makes",
    "optimizer.params.lr": "learning rate",
    "optimizer.params.betas": "decay rates of the two moments",
    "optimizer.params.eps": "keeps Adam from dividing by 0",
    "optimizer.params.weight_decay": "weight decay",
    "optimizer.params.adam_w_mode": "decoupled weight decay (AdamW)",
    "optimizer.params.torch_adam": "PyTorch's AdamW instead of DeepSpeed's FusedAdam",
    "optimizer.params.momentum": "Muon's momentum",
    "optimizer.params.muon_lr": "Muon's learning rate, for matrices other than embeddings",
    "zero_force_ds_cpu_optimizer": "whether offload insists on an optimizer of DeepSpeed's",
    "zero_allow_untested_optimizer": "take an optimizer that DeepSpeed has not tested under ZeRO",
    "scheduler.type": "the learning rate schedule DeepSpeed runs",
    "scheduler.params.total_num_steps": "optimizer steps of the whole run",
    "scheduler.params.warmup_num_steps": "steps of warm-up; 0 is refused since 0.19.6",
    "scheduler.params.warmup_min_lr": "learning rate at the first step",
    "scheduler.params.warmup_max_lr": "learning rate after the warm-up",
    "scheduler.params.warmup_min_ratio": "share of the learning rate at the first step",
    "scheduler.params.cos_min_ratio": "share of the learning rate at the end",
    "scheduler.params.warmup_type": "shape of the warm-up",
    "sequence_parallel_size": "ranks that share one sequence",
    "data_parallel_size": "groups of ranks that see different samples",
    "aio.single_submit": "send NVMe requests one by one",
    "aio.overlap_events": "send NVMe requests while others complete",
    "tensorboard.enabled": "write TensorBoard events",
    "tensorboard.job_name": "folder of the run below output_path",
    "csv_monitor.enabled": "write CSV files",
    "csv_monitor.job_name": "folder of the run below output_path",
    "wandb.enabled": "log to Weights & Biases",
    "comet.enabled": "log to Comet",
    "flops_profiler.detailed": "print the module tree",
    "comms_logger.prof_all": "log every kind of collective",
    "expert_parallel.enabled": "AutoEP",
    "compile.offload_activation_pin_memory": "page-locked host memory for those activations",
}


@dataclass(frozen=True, kw_only=True)
class Explained:
    """One key of the configuration: its path, its value, what it does, and why it is this value."""

    key: str
    value: Any
    does: str
    why: str


@cache
def meanings() -> dict[str, str]:
    """What every key does that a configuration of dsrun can hold."""
    by_option = {each.metadata["sets"]: each.metadata["help"] for each in options().values()}
    return DOES | {path: help for path, help in by_option.items() if path}


def explain(spec: ZeroSpec, facts: HardwareFacts) -> list[Explained]:
    """Every key of `generate(spec, facts=facts)` in its order. Raises UsageError as that does."""
    return [
        Explained(key=path, value=because.value, does=meanings()[path], why=because.why)
        for path, because in build(spec, facts).items()
    ]


def as_text(rows: Sequence[Explained]) -> str:
    """The explanation for a reader: three lines a key."""
    return "\n".join(
        f"{row.key} = {json.dumps(row.value, ensure_ascii=False)}\n    {row.does}\n    because: {row.why}"
        for row in rows
    )


def as_json(rows: Sequence[Explained]) -> str:
    """The explanation for a program: {"version": 1, "keys": [{"key", "value", "does", "why"}, …]}."""
    return json.dumps(
        {"version": VERSION, "keys": [asdict(row) for row in rows]}, indent=2, ensure_ascii=False
    )
