"""ZeRO checkpoints made from named tensors, in DeepSpeed's file layout, without training anything."""

from __future__ import annotations

import math
from collections import OrderedDict
from pathlib import Path

import torch
from deepspeed.runtime.zero.config import ZeroStageEnum

VERSION = "0.19.8"
HYPER = {"lr": 0.01, "initial_lr": 0.02, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}


def write_zero(
    folder: Path,
    groups: list[dict[str, torch.Tensor]],
    *,
    stage: int,
    ranks: int,
    states: tuple[str, ...] = ("exp_avg", "exp_avg_sq"),
    dtype: torch.dtype = torch.float32,
    config: dict | None = None,
    aliases: dict[str, str] | None = None,
) -> Path:
    """Write `folder` as a checkpoint at step 5 of `ranks` ranks. State number i of a tensor is the tensor plus i."""
    tag = folder / "global_step5"
    tag.mkdir(parents=True)
    (folder / "latest").write_text("global_step5")
    (folder / "trainer_state.json").write_text('{"global_step": 5}')
    torch.save({"last_epoch": 5, "base_lrs": [0.02, 0.02], "lr_lambdas": [{}, {}]}, folder / "scheduler.pt")
    shapes = [OrderedDict((name, value.shape) for name, value in group.items()) for group in groups]
    whole = {name: value.to(dtype) for group in groups for name, value in group.items()}
    whole |= {alias: whole[name] for alias, name in (aliases or {}).items()}
    for rank in range(ranks):
        prefix = f"zero_pp_rank_{rank}_" if stage == 3 else ""
        module = {name: value.new_empty(0) for name, value in whole.items()} if stage == 3 else whole
        if rank == 0 or stage == 3:
            model = {
                "module": module, "param_shapes": shapes, "buffer_names": [], "shared_params": aliases or {},
                "frozen_param_shapes": {}, "frozen_param_fragments": {}, "lr_scheduler": None, "global_steps": 5,
                "global_samples": 40, "skipped_steps": 0, "dp_world_size": ranks, "mp_world_size": 1,
                "ds_version": VERSION, "ds_config": {"zero_optimization": {"stage": stage}, **(config or {})},
            }  # fmt: skip
            torch.save(model, tag / f"{prefix}mp_rank_00_model_states.pt")
        parts = [_partition(group, stage, rank, ranks) for group in groups]
        state = {
            i: {
                "step": torch.tensor(5.0),
                **{name: part + number for number, name in enumerate(states, 1)},
            }
            for i, part in enumerate(parts)
        }
        base = {"state": state, "param_groups": [{**HYPER, "params": [i]} for i in range(len(groups))]}
        if stage == 3:
            optimizer = {"optimizer_state_dict": base, "fp32_flat_groups": parts, "partition_count": ranks}
        else:
            optimizer = {
                "base_optimizer_state": base, "single_partition_of_fp32_groups": [
                    part[: part.numel() - _padding(group, ranks)] if rank == ranks - 1 else part
                    for part, group in zip(parts, groups, strict=True)
                ],
                "partition_count": [ranks] * len(groups),
            }  # fmt: skip
        optimizer |= {"zero_stage": ZeroStageEnum(stage), "loss_scaler": None, "dynamic_loss_scale": False}
        torch.save({"optimizer_state_dict": optimizer}, tag / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    return folder


def _partition(group: dict[str, torch.Tensor], stage: int, rank: int, ranks: int) -> torch.Tensor:
    if stage == 3:
        pieces = []
        for value in group.values():
            share = math.ceil(value.numel() / ranks)
            padded = torch.cat([value.reshape(-1), torch.zeros(share * ranks - value.numel())])
            pieces.append(padded[rank * share : (rank + 1) * share])
        return torch.cat(pieces)
    flat = torch.cat([value.reshape(-1) for value in group.values()])
    padded = torch.cat([flat, torch.zeros(_padding(group, ranks))])
    return padded.chunk(ranks)[rank].clone()


def _padding(group: dict[str, torch.Tensor], ranks: int) -> int:
    """ZeRO-1 and 2 fill a group up to a multiple of twice the ranks."""
    return -sum(value.numel() for value in group.values()) % (2 * ranks)
