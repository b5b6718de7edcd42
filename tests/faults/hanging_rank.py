"""A rank of a small training that hangs in its fifth step, or waits for the one that does: `KIND RANK FOLDER`."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from dsrun.runs.heartbeat import HeartbeatWriter

KINDS = ("sleep", "lock", "loader", "other collective", "stopped")
STEP = 5
"""In which it hangs. A step takes a tenth of a second."""


class Rows(Dataset):
    """Whose row number `stuck` never comes."""

    def __init__(self, stuck: int | None) -> None:
        self.stuck = stuck

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        parent = os.getppid()
        while index == self.stuck and os.getppid() == parent:  # a worker of a killed rank ends
            time.sleep(0.1)
        return torch.ones(4)


class Training:
    def __init__(self, heart: HeartbeatWriter, rank: int, variant: int) -> None:
        self.heart = heart
        self.rank = rank
        self.variant = variant
        self.other = dist.new_group()
        model = torch.nn.Linear(4, 4)
        self.model = torch.nn.parallel.DistributedDataParallel(model) if variant % 2 else model

    def reduce_gradients(self) -> None:
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)

    def step(self, batch: torch.Tensor) -> None:
        self.model.zero_grad()
        self.model(batch).sum().backward()  # under DDP the ranks wait in here
        if not self.variant % 2:
            self.reduce_gradients()
        time.sleep(0.1)

    def hang(self, kind: str) -> None:
        if kind == "sleep":
            time.sleep(10_000)
        elif kind == "lock":
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        elif kind == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif kind == "other collective":
            tensor = torch.ones(4)
            (
                lambda: dist.barrier(group=self.other),
                lambda: dist.broadcast(tensor, 0 if self.rank else 1, group=self.other),
                lambda: dist.all_reduce(tensor, group=self.other),
                lambda: dist.all_gather_object([None] * dist.get_world_size(), self.rank, group=self.other),
            )[self.variant % 4]()


def main() -> None:
    kind, hanging, variant, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    faulthandler.register(signal.SIGUSR2, all_threads=True, chain=False)
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    heart = HeartbeatWriter(folder, rank, answers=True)
    dist.init_process_group("gloo")
    training = Training(heart, rank, variant)
    mine = rank == hanging
    batch = 2
    stuck = STEP * batch if mine and kind == "loader" else None
    # Workers in half of the cases; without them the rank itself reads.
    loader = DataLoader(Rows(stuck), batch_size=batch, num_workers=1 if variant % 4 > 1 and stuck else 0)
    heart.enter("training")
    for number, rows in enumerate(loader):
        if mine and number == STEP:
            training.hang(kind)
        training.step(rows)
        heart.step(number + 1)


if __name__ == "__main__":
    main()
