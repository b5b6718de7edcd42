"""One rank of bench/straggler.py: runs of 50 steps, in some of which it is slow. `straggler_rank.py FOLDER`."""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bench.straggler import STEPS
from dsrun.runs.heartbeat import HeartbeatWriter
from dsrun.train.loop.step_times import StepTimes

STEP_S = 0.3
"""What a step takes a rank itself, of which a tenth goes into its batch."""
_WIDTH = 256


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    plan = json.loads((folder / "plan.json").read_text())
    work = Work(waits=plan["waits"])
    for number, run in enumerate(plan["runs"]):
        dist.barrier()
        _run(folder / str(number), work, run, random.Random(1000 * number + dist.get_rank()))
    dist.destroy_process_group()


class Work:
    """A step's own work: as many products of matrices as took a rank alone 0.3 s, the same for all ranks; or a wait."""

    def __init__(self, *, waits: bool) -> None:
        self._waits = waits
        self._matrix = torch.ones(_WIDTH, _WIDTH)
        began, cpu = time.perf_counter(), time.process_time()
        products = 0
        while time.process_time() - cpu < STEP_S or time.perf_counter() - began < STEP_S:
            self._multiply(10)
            products += 10
        count = torch.tensor([products * STEP_S / (time.process_time() - cpu)])
        dist.all_reduce(count, op=dist.ReduceOp.MIN)
        self._products = int(count)

    def _multiply(self, times: int) -> None:
        for _ in range(times):
            self._matrix @ self._matrix

    def do(self, share: float) -> None:
        """This share of a step."""
        if self._waits:
            time.sleep(share * STEP_S)
        else:
            self._multiply(round(share * self._products))


def _run(folder: Path, work: Work, run: dict[str, Any], draw: random.Random) -> None:
    """Its calls are those of the Trainer on a rank under ZeRO: a batch, the passes, a reduction, a heartbeat."""
    rank, world = dist.get_rank(), dist.get_world_size()
    heart, times = HeartbeatWriter(folder, rank), StepTimes("cpu", world, ddp=False)
    args: Any = None
    gradients = torch.ones(1000)
    times.on_train_begin(args, args, args)
    for step in range(1, STEPS + 1):
        times.on_step_begin(args, args, args)
        began = time.perf_counter()
        times.fetch((work.do(0.1) for _ in range(1)), 1)
        work.do(0.9)
        own = time.perf_counter() - began
        extra = run["percent"] / 100 if rank == run["rank"] else 0.0
        # A step cannot take less than its work, so what varies is added.
        time.sleep(own * max(0.0, extra + draw.gauss(3, 1 + 3 * run["noise"]) * run["noise"]))
        dist.all_reduce(gradients)
        times.on_pre_optimizer_step(args, args, args)
        times.on_step_end(args, args, args)
        heart.step(step, times.recent())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
