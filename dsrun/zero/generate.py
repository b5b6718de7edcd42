"""From a ZeroSpec to DeepSpeed's JSON.

Values that the Hugging Face Trainer fills from its own arguments are "auto"; every default that moved between
DeepSpeed releases is written out (gradient clipping 0 -> 1.0 and bf16.check_grad_overflow -> true in 0.19.3,
offload pin_memory -> true in 0.19.5), so that the same file means the same thing next year.
"""

from __future__ import annotations

import json
from typing import Any

from dsrun.errors import UsageError
from dsrun.zero.spec import Offload, ZeroSpec

AUTO = "auto"
STAGES = (0, 1, 2, 3)

# Below this many elements a bucket costs more in launches than it hides; above, its buffer eats GPU memory.
SMALLEST_BUCKET = 5_000_000
LARGEST_BUCKET = 200_000_000


def bucket_elements(hidden_size: int) -> int:
    """Elements in one reduce bucket: hidden_size squared, as the Trainer's own "auto" has it, within sane bounds."""
    return min(max(hidden_size * hidden_size, SMALLEST_BUCKET), LARGEST_BUCKET)


def generate(spec: ZeroSpec, *, hidden_size: int | None = None) -> dict[str, Any]:
    """DeepSpeed's configuration for `spec`, for use under the Hugging Face Trainer.

    With `hidden_size` (the model's width, in elements) the bucket sizes are numbers, else "auto".
    Raises UsageError for a stage DeepSpeed does not have or offload that does not go with it.
    """
    _check(spec)
    config: dict[str, Any] = {
        "train_batch_size": AUTO,
        "train_micro_batch_size_per_gpu": AUTO,
        "gradient_accumulation_steps": AUTO,
        "gradient_clipping": AUTO,
        "bf16": {"enabled": AUTO, "check_grad_overflow": True},
        "fp16": {
            "enabled": AUTO,
            "loss_scale": 0,
            "initial_scale_power": 16,
            "loss_scale_window": 1000,
            "hysteresis": 2,
            "min_loss_scale": 1,
        },
        "zero_optimization": _zero_block(spec, hidden_size),
    }
    if spec.offload_optimizer != "none":
        config |= _offloaded_optimizer(spec)
    if spec.offload_optimizer == "nvme" or spec.offload_param == "nvme":
        config["aio"] = {
            "block_size": 1_048_576,
            "queue_depth": 8,
            "intra_op_parallelism": 1,
            "single_submit": False,
            "overlap_events": True,
        }
    return config


def render(config: dict[str, Any]) -> str:
    """The configuration as it is written to a file: indented JSON with a final newline."""
    return json.dumps(config, indent=2) + "\n"


def _check(spec: ZeroSpec) -> None:
    if spec.stage not in STAGES:
        raise UsageError(f"ZeRO stage {spec.stage} does not exist", fix="choose --zero 0, 1, 2 or 3")
    if spec.offload_optimizer != "none" and spec.stage == 0:
        raise UsageError(
            "offload needs ZeRO: plain DDP keeps everything on the GPU", fix="add --zero 2 or --zero 3"
        )
    if spec.offload_param != "none" and spec.stage != 3:
        raise UsageError(f"ZeRO-{spec.stage} cannot offload parameters", fix="use --zero 3")
    if "nvme" in (spec.offload_optimizer, spec.offload_param):
        if spec.stage != 3:
            raise UsageError(
                f"ZeRO-{spec.stage} cannot offload to NVMe", fix="use --zero 3, or --offload cpu"
            )
        if not spec.nvme_path:
            raise UsageError("--offload nvme has no folder to write to", fix="add --nvme-path /local/nvme")


def _zero_block(spec: ZeroSpec, hidden_size: int | None) -> dict[str, Any]:
    bucket = AUTO if hidden_size is None else bucket_elements(hidden_size)
    block: dict[str, Any] = {
        "stage": spec.stage,
        "overlap_comm": spec.stage > 0,
        "contiguous_gradients": spec.stage > 0,
        "reduce_scatter": True,
        "reduce_bucket_size": bucket,
        # DeepSpeed wants a number here for stages 1 and 2, and the Trainer does not fill this key.
        "allgather_bucket_size": 200_000_000 if hidden_size is None else bucket,
        "round_robin_gradients": spec.stage in (1, 2),
    }
    if spec.offload_optimizer != "none":
        block["offload_optimizer"] = _offload_block(spec.offload_optimizer, spec.nvme_path, buffer_count=4)
    if spec.offload_param != "none":
        block["offload_param"] = _offload_block(spec.offload_param, spec.nvme_path, buffer_count=5)
    if spec.stage == 3:
        block |= {
            "sub_group_size": 1_000_000_000,
            "stage3_prefetch_bucket_size": AUTO
            if hidden_size is None
            else int(0.9 * bucket_elements(hidden_size)),
            "stage3_param_persistence_threshold": AUTO if hidden_size is None else 10 * hidden_size,
            "stage3_max_live_parameters": 1_000_000_000,
            "stage3_max_reuse_distance": 1_000_000_000,
            # Without it a ZeRO-3 checkpoint holds no weights that from_pretrained can load.
            "stage3_gather_16bit_weights_on_model_save": True,
        }
    return block


def _offload_block(place: Offload, nvme_path: str | None, *, buffer_count: int) -> dict[str, Any]:
    block: dict[str, Any] = {"device": place, "pin_memory": True}
    if place == "nvme":
        block |= {"nvme_path": nvme_path, "buffer_count": buffer_count}
    return block


def _offloaded_optimizer(spec: ZeroSpec) -> dict[str, Any]:
    """The optimizer that runs on the host: DeepSpeed's vectorised CPU Adam unless the user chose another."""
    if spec.own_optimizer:
        return {"zero_force_ds_cpu_optimizer": False}
    params = dict.fromkeys(("lr", "betas", "eps", "weight_decay"), AUTO)
    return {"optimizer": {"type": "AdamW", "params": params}}
