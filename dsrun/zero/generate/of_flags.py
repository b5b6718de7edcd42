"""DeepSpeed's JSON as a training run's flags ask for it: stage, place of the states, optimizer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dsrun.zero.generate.config import generate
from dsrun.zero.generate.spec import from_offload

ADAMW_OF_TORCH = ("adamw_torch", "adamw_torch_fused")
"""What DeepSpeed's CPU Adam computes too; those of the other "adamw_" names keep other states."""


def config_of_flags(
    stage: int,
    *,
    offload: str,
    nvme_path: str | None,
    optim: str | None,
    bf16_master_weights: bool,
    hidden_size: int | None,
) -> dict[str, Any] | None:
    """The configuration, or None for plain DDP (stage 0).

    An `optim` that is not AdamW keeps DeepSpeed's CPU Adam out of an offloaded run.
    """
    if stage == 0 and offload == "none":
        return None
    own_optimizer = (optim or ADAMW_OF_TORCH[0]) not in ADAMW_OF_TORCH
    zero = from_offload(stage, offload, nvme_path, own_optimizer=own_optimizer)
    return generate(replace(zero, bf16_master_weights=bf16_master_weights), hidden_size=hidden_size)
