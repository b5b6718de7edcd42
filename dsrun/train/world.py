"""This worker's place among the others: device, backend and the process group."""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist

Device = Literal["cuda", "cpu"]

# DeepSpeed lowered torch's 30 minutes to 10; a rank that saves a large checkpoint can need longer than that.
DEFAULT_TIMEOUT_MINUTES = 30


@dataclass(frozen=True)
class World:
    """Rank and sizes of this worker, all counted in processes."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    device: Device

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def device_words(self) -> str:
        """How the header names the devices: `8 GPUs`, `2 CPU ranks`."""
        kind = "GPU" if self.device == "cuda" else "CPU rank"
        return f"{kind}s" if self.size > 1 else kind


def here(*, use_cpu: bool) -> World:
    """Read this worker's place from the variables torchrun sets; no communication."""
    size = int(os.environ["WORLD_SIZE"])
    return World(
        rank=int(os.environ["RANK"]),
        size=size,
        local_rank=int(os.environ["LOCAL_RANK"]),
        local_size=int(os.environ.get("LOCAL_WORLD_SIZE", size)),
        device="cuda" if torch.cuda.is_available() and not use_cpu else "cpu",
    )


def join(world: World, *, deepspeed: bool) -> None:
    """Set up the process group: NCCL on GPUs, gloo on CPUs.

    Under DeepSpeed this must happen before the model is built, or zero.Init sees a world of one process and the
    engine's batch assertion fails. Calling it again is harmless.
    """
    timeout = datetime.timedelta(minutes=float(os.environ.get("DEEPSPEED_TIMEOUT", DEFAULT_TIMEOUT_MINUTES)))
    backend = "nccl" if world.device == "cuda" else "gloo"
    if world.device == "cuda":
        torch.cuda.set_device(world.local_rank)
    if deepspeed:
        import deepspeed as ds

        ds.init_distributed(dist_backend=backend, timeout=timeout, verbose=False)
    elif not dist.is_initialized():
        device = torch.device("cuda", world.local_rank) if world.device == "cuda" else None
        dist.init_process_group(backend, timeout=timeout, device_id=device)


def leave() -> None:
    """End the process group, so that NCCL does not warn about leaked resources."""
    if dist.is_initialized():
        dist.destroy_process_group()


def bf16_supported(device: Device, cpu_bf16: bool) -> bool:
    """Whether bf16 is computed in hardware here; emulation (CUDA below 8.0) does not count."""
    if device == "cpu":
        return cpu_bf16
    return torch.cuda.get_device_capability()[0] >= 8
