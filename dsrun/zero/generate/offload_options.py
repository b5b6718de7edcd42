"""The options about offload, ZenFlow and number formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dsrun.zero.generate.options import DTYPES, PLACES, ZERO, option

OPTIMIZER = f"{ZERO}.offload_optimizer"
PARAM = f"{ZERO}.offload_param"
ZENFLOW = f"{ZERO}.zenflow"
CORES = "share of the CPU cores, from 0 to 1, "


@dataclass(frozen=True, kw_only=True)
class OffloadOptions:
    """What leaves the GPU."""

    offload_optimizer: Literal["none", "cpu", "nvme"] = option(
        "none", "keep optimizer states, and step, in host memory or on NVMe", group="offload", choices=PLACES
    )
    offload_param: Literal["none", "cpu", "nvme"] = option(
        "none", "keep parameters in host memory or on NVMe (ZeRO 3)", group="offload", choices=PLACES
    )
    nvme_path: str | None = option(
        None, "folder on a local NVMe drive for what is offloaded to nvme", group="offload", metavar="DIR"
    )
    pin_memory: bool | None = option(
        None, "page-locked host memory: fast copies that overlap, never swapped out", group="offload"
    )
    offload_ratio: float = option(
        1.0,
        "share of the optimizer that steps on the CPU, from 0 to 1; the rest stays on the GPU (ZeRO 3)",
        group="offload",
        sets=f"{OPTIMIZER}.ratio",
        least=0,
        most=1,
    )
    super_offload: bool = option(
        False,
        "SuperOffload: steps on the CPU while the backward pass runs, for Grace-Hopper and the like (ZeRO 3)",
        group="offload",
        sets=f"{OPTIMIZER}.super_offload",
    )
    cpu_adam_cores: float = option(
        0.8,
        CORES + "that SuperOffload's optimizer takes",
        group="offload",
        sets=f"{OPTIMIZER}.cpuadam_cores_perc",
        needs="super_offload",
        least=0.01,
        most=1,
    )
    pipeline_read: bool = option(
        False,
        "read the next slice from NVMe while the current one steps",
        group="offload",
        sets=f"{OPTIMIZER}.pipeline_read",
    )
    pipeline_write: bool = option(
        False,
        "write the last slice to NVMe while the current one steps",
        group="offload",
        sets=f"{OPTIMIZER}.pipeline_write",
    )
    nvme_fast_init: bool = option(
        False,
        "skip the first write of optimizer states to NVMe",
        group="offload",
        sets=f"{OPTIMIZER}.fast_init",
    )
    max_in_cpu: int | None = option(
        None,
        "parameter elements kept in host memory before NVMe is used",
        group="offload",
        sets=f"{PARAM}.max_in_cpu",
        least=0,
    )
    param_buffer_size: int | None = option(
        None,
        "elements of one NVMe buffer; at least the largest parameter",
        group="offload",
        sets=f"{PARAM}.buffer_size",
        least=1,
    )
    param_buffer_count: int | None = option(
        None, "NVMe buffers for parameters", group="offload", sets=f"{PARAM}.buffer_count", least=1
    )
    aio_block_size: int | None = option(
        None, "bytes of one NVMe request", group="offload", sets="aio.block_size", least=1
    )
    aio_queue_depth: int | None = option(
        None, "NVMe requests in flight", group="offload", sets="aio.queue_depth", least=1
    )
    aio_parallelism: int | None = option(
        None, "threads that serve one NVMe request", group="offload", sets="aio.intra_op_parallelism", least=1
    )
    gds: bool = option(
        False, "GPUDirect Storage: NVMe to GPU without host memory", group="offload", sets="aio.use_gds"
    )

    # zenflow
    zenflow: bool = option(
        False,
        "ZenFlow: the GPU steps the few gradients that matter, the CPU the rest, less often",
        group="zenflow",
    )
    zenflow_topk_ratio: float = option(
        0.1,
        "share of gradient columns that step on the GPU, between 0 and 1",
        group="zenflow",
        sets=f"{ZENFLOW}.topk_ratio",
        needs="zenflow",
        least=0.0001,
        most=0.9999,
    )
    zenflow_select_strategy: str | None = option(
        None,
        "when the columns are chosen anew",
        group="zenflow",
        sets=f"{ZENFLOW}.select_strategy",
        needs="zenflow",
        choices=("auto", "step", "epoch"),
    )
    zenflow_select_interval: int | None = option(
        None,
        "steps or epochs between two choices",
        group="zenflow",
        sets=f"{ZENFLOW}.select_interval",
        needs="zenflow",
        least=1,
    )
    zenflow_update_interval: int | None = option(
        None,
        "steps after which the CPU applies what it gathered; default: as the gradients ask",
        group="zenflow",
        sets=f"{ZENFLOW}.update_interval",
        needs="zenflow",
        least=1,
    )
    zenflow_warm_up_rounds: int = option(
        0,
        "first steps that update everything",
        group="zenflow",
        sets=f"{ZENFLOW}.full_warm_up_rounds",
        needs="zenflow",
        least=0,
    )
    zenflow_overlap_step: bool = option(
        False,
        "step on the CPU during forward and backward",
        group="zenflow",
        sets=f"{ZENFLOW}.overlap_step",
        needs="zenflow",
    )
    zenflow_offload_selected: bool = option(
        False,
        "keep the chosen columns' states in host memory too",
        group="zenflow",
        sets=f"{ZENFLOW}.offload",
        needs="zenflow",
    )
    zenflow_auto_ratio: float = option(
        0.99,
        "how much of the gradient norm must wait before an automatic update",
        group="zenflow",
        sets=f"{ZENFLOW}.auto_ratio",
        needs="zenflow",
        least=0,
        most=1,
    )
    zenflow_reserved_cores: float = option(
        0.5,
        CORES + "kept for PyTorch",
        group="zenflow",
        sets=f"{ZENFLOW}.pt_reserved_cores_perc",
        needs="zenflow",
        least=0,
        most=1,
    )


@dataclass(frozen=True, kw_only=True)
class PrecisionOptions:
    """Number formats."""

    precision: str = option(
        "auto",
        "format of weights and activations; auto: as the Trainer is told, or as the GPU can",
        group="precision",
        choices=("auto", *DTYPES),
    )
    check_grad_overflow: bool | None = option(
        None,
        "skip the step when a bf16 gradient is infinite or NaN",
        group="precision",
        sets="bf16.check_grad_overflow",
    )
    immediate_grad_update: bool = option(
        False,
        "add a bf16 gradient to the accumulated one at once",
        group="precision",
        sets="bf16.immediate_grad_update",
    )
    bf16_master_weights: bool = option(
        False,
        "keep master weights and gradients in bf16: half the memory, less exact",
        group="precision",
        sets="bf16.bf16_master_weights_and_grads",
    )
    bf16_optimizer_states: bool = option(
        False,
        "keep Adam's moments in bf16 too",
        group="precision",
        sets="bf16.bf16_optimizer_states",
        needs="bf16_master_weights",
    )
    fp16_master_weights: bool = option(
        False,
        "keep master weights and gradients in fp16",
        group="precision",
        sets="fp16.fp16_master_weights_and_grads",
    )
    fp16_auto_cast: bool = option(
        False, "cast the model's inputs to fp16", group="precision", sets="fp16.auto_cast"
    )
    loss_scale: float | None = option(
        None, "fixed loss scale of fp16; 0 is dynamic", group="precision", sets="fp16.loss_scale", least=0
    )
    initial_scale_power: int | None = option(
        None,
        "first dynamic loss scale, as a power of two",
        group="precision",
        sets="fp16.initial_scale_power",
        least=0,
        most=64,
    )
    loss_scale_window: int | None = option(
        None,
        "good steps after which the loss scale doubles",
        group="precision",
        sets="fp16.loss_scale_window",
        least=1,
    )
    hysteresis: int | None = option(
        None,
        "overflows before the loss scale is halved",
        group="precision",
        sets="fp16.hysteresis",
        least=1,
    )
    consecutive_hysteresis: bool = option(
        False,
        "count overflows anew after a good step",
        group="precision",
        sets="fp16.consecutive_hysteresis",
    )
    min_loss_scale: int | None = option(
        None, "smallest dynamic loss scale", group="precision", sets="fp16.min_loss_scale", least=1
    )
    torch_autocast: str = option(
        "none",
        "PyTorch's mixed precision: weights stay fp32, safe modules compute in this format",
        group="precision",
        choices=("none", "bf16", "fp16"),
    )
    autocast_modules: tuple[str, ...] = option(
        (),
        "module classes that torch_autocast computes in the lower format",
        group="precision",
        sets="torch_autocast.lower_precision_safe_modules",
        needs="torch_autocast",
        metavar="CLASS",
    )
    grad_accum_dtype: str | None = option(
        None,
        "format in which gradients are accumulated",
        group="precision",
        sets="data_types.grad_accum_dtype",
        choices=DTYPES,
    )
    buffer_dtype: str | None = option(
        None,
        "format of the model's buffers; default: as they were loaded",
        group="precision",
        sets="data_types.buffer_dtype",
        choices=DTYPES,
    )
    keep_in_fp32: tuple[str, ...] = option(
        (),
        "patterns of buffers that stay fp32; default: the model's own list",
        group="precision",
        sets="data_types.keep_in_fp32_modules",
        metavar="PATTERN",
    )
    communication_data_type: str | None = option(
        None,
        "format in which gradients are reduced; default: the weights' own",
        group="precision",
        sets="communication_data_type",
        choices=DTYPES,
    )
