"""This worker's place among the others: device, backend, process group, and the collectives around saves and resumes.

The collectives let all ranks learn of one rank's failure, and none wait for it: all ranks call them at the same point,
on the thread that trains."""

import datetime
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from filelock import FileLock, Timeout

from dsrun.errors import DsrunError, ToolError
from dsrun.hardware.gpu_facts import AMPERE
from dsrun.launch.expected_gpus import check_rank
from dsrun.recipe.deepspeed_file import DEFAULT_S, group_timeout_s
from dsrun.train.base.refusals import refusal

DeviceType = Literal["cuda", "cpu"]

T = TypeVar("T")


@dataclass(frozen=True)
class DistributedWorld:
    rank: int
    size: int
    local_rank: int
    local_size: int
    device: DeviceType
    gpu: int = 0
    """The number of this rank's GPU among those that it sees."""
    group_timeout_s: float = DEFAULT_S

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def rank_name(self) -> str:
        return "GPU" if self.device == "cuda" else "CPU rank"

    @property
    def ranks_named(self) -> str:
        """ "8 GPUs" or "1 CPU rank"."""
        return f"{self.size} {self.rank_name}{'s' if self.size > 1 else ''}"


def world_from_env(*, use_cpu: bool, ddp_timeout: int | None = None) -> DistributedWorld:
    """Raises MissingError on a machine with GPUs that torch does not see, unless `use_cpu`."""
    if not use_cpu:
        check_rank(os.environ)
    size, local_rank = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    device: DeviceType = "cuda" if torch.cuda.is_available() and not use_cpu else "cpu"
    gpu = gpu_of(local_rank, local_size, torch.cuda.device_count()) if device == "cuda" else 0
    timeout_s = group_timeout_s(ddp_timeout, os.environ)
    return DistributedWorld(int(os.environ["RANK"]), size, local_rank, local_size, device, gpu, timeout_s)


def gpu_of(local_rank: int, local_size: int, visible: int) -> int:
    """The number of a rank's GPU among the `visible` ones: all ranks of a machine see all, or each its own alone, as
    under `srun --gpus-per-task=1`. Raises UsageError for anything in between."""
    if visible >= local_size:
        return local_rank
    if visible == 1:
        return 0
    raise refusal("world.gpus", ranks=local_size, rank=local_rank, visible=visible)


def init_process_group(world: DistributedWorld, *, deepspeed: bool) -> None:
    """Set up the process group: NCCL on GPUs, gloo on CPUs; again is harmless. Under DeepSpeed this must come before
    the model is built, or zero.Init sees a world of one process and the engine's batch assertion fails."""
    timeout = datetime.timedelta(seconds=world.group_timeout_s)
    # Of groups that are made without one, as DeepSpeed does; of NCCL's it would be ten minutes.
    c10d.default_pg_timeout = c10d.default_pg_nccl_timeout = timeout
    backend = "nccl" if world.device == "cuda" else "gloo"
    if world.device == "cuda":
        # DeepSpeed and accelerate take the GPU of that number.
        os.environ["LOCAL_RANK"] = str(world.gpu)
        torch.cuda.set_device(world.gpu)
    if deepspeed:
        import deepspeed as ds

        ds.init_distributed(dist_backend=backend, timeout=timeout, verbose=False)
    elif not dist.is_initialized():
        # With a device NCCL connects at once, not at the first collective (`device_id` in torch's documentation).
        device = torch.device("cuda", world.gpu) if world.device == "cuda" else None
        dist.init_process_group(backend, timeout=timeout, device_id=device)


def destroy_process_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def bf16_supported(device: DeviceType, cpu_bf16: bool) -> bool:
    """Whether bf16 is computed in hardware here; emulation (CUDA below 8.0) does not count."""
    return cpu_bf16 if device == "cpu" else torch.cuda.get_device_capability() >= AMPERE


def my_rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def local_ranks() -> int:
    """Ranks on this machine, which share its cores and its memory."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def all_gather_object(mine: T) -> list[T]:
    """What every rank has, by rank. Values travel as pickles, so keep them small."""
    if ranks() == 1:
        return [mine]
    gathered: list[Any] = [None] * ranks()
    dist.all_gather_object(gathered, mine)
    return gathered


def rank0_first(work: Callable[[], T]) -> T:
    """What `work` returns on rank 0, which alone does it. A DsrunError or OSError it raises is raised on all ranks."""
    answer: list[Any] = [None, None]
    if my_rank() == 0:
        try:
            answer[0] = work()
        except (DsrunError, OSError) as error:
            answer[1] = error
    if ranks() > 1:
        dist.broadcast_object_list(answer, src=0)
    if answer[1] is not None:
        raise answer[1]
    return answer[0]


def rank0_shares(work: Callable[[], list[T]]) -> T:
    """This rank's entry of the list, one entry per rank, that `work` returns on rank 0. Errors as in `rank0_first`."""
    shares: list[T] = []
    rank0_first(lambda: shares.extend(work()))
    if ranks() == 1:
        return shares[0]
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, shares if my_rank() == 0 else None, src=0)
    return mine[0]


STALE_FOLDER = "the same command again: a node saw the run folder as it had been a moment before"


def assert_same_on_all_ranks(what: str, mine: str, *, fix: str = STALE_FOLDER) -> None:
    """Raise ToolError on all ranks unless `mine`, which each rank found by itself, is the same on all. What it read in
    files of the run folder is mended by another start."""
    gathered = all_gather_object(mine)
    other = next((rank for rank, value in enumerate(gathered) if value != gathered[0]), None)
    if other is not None:
        values = f"{gathered[0]} on rank 0, {gathered[other]} on rank {other}"
        raise ToolError(f"the ranks differ in their {what}: {values}", fix=fix)


def acquire_lock(path: Path, waiting: Callable[[], None], *, seconds: float = 3.0) -> AbstractContextManager[Any]:
    """Take a lock between processes; whoever leaves the context gives it back. `waiting` is called every `seconds`."""
    lock = FileLock(path)
    while True:
        try:
            return lock.acquire(timeout=seconds)
        except Timeout:
            waiting()


def all_ready(ready: bool) -> bool:
    """Whether every rank is; cheap enough for every step."""
    if ranks() == 1:
        return ready
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else "cpu"
    vote = torch.tensor(int(ready), device=device)
    dist.all_reduce(vote, op=dist.ReduceOp.MIN)
    return bool(vote)
