"""Which of the GPUs that a rank sees is its own."""

from __future__ import annotations

import os

import pytest
import torch

from dsrun.errors import UsageError
from dsrun.train.base import distributed
from dsrun.train.base.distributed import DistributedWorld, gpu_of, world_from_env


@pytest.mark.parametrize(
    ("local_rank", "local_size", "visible", "gpu"),
    [(3, 4, 4, 3), (3, 4, 8, 3), (3, 4, 1, 0), (0, 1, 1, 0)],
)
def test_gpu_of_rank(local_rank, local_size, visible, gpu):
    """`srun --gpus-per-task=1` shows each rank its own GPU alone, as number 0."""
    assert gpu_of(local_rank, local_size, visible) == gpu


def test_fewer_gpus_than_ranks_are_refused():
    with pytest.raises(UsageError):
        gpu_of(3, 4, 2)


def test_libraries_take_the_only_visible_gpu(monkeypatch):
    """DeepSpeed and accelerate take the GPU of LOCAL_RANK's number, which is another rank's or none."""
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    taken = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(distributed.dist, "init_process_group", lambda *args, **more: taken.append(more["device_id"]))
    world = world_from_env(use_cpu=False)
    assert world == DistributedWorld(rank=3, size=4, local_rank=3, local_size=4, device="cuda", gpu=0)
    distributed.init_process_group(world, deepspeed=False)
    assert taken == [0, torch.device("cuda", 0)]
    assert os.environ["LOCAL_RANK"] == "0"
