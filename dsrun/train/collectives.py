"""What ranks tell one another around a save or a resume, so that all learn of one rank's failure and none waits for it.

Every function is a collective: all ranks call it at the same point, on the thread that trains.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from dsrun.errors import DsrunError, ToolError

T = TypeVar("T")


def my_rank() -> int:
    """This process's rank; 0 where there is no process group."""
    return dist.get_rank() if dist.is_initialized() else 0


def ranks() -> int:
    """How many ranks there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def all_gather_object(mine: T) -> list[T]:
    """What every rank says, by rank. Values travel as pickles, so keep them small."""
    if ranks() == 1:
        return [mine]
    said: list[Any] = [None] * ranks()
    dist.all_gather_object(said, mine)
    return said


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


def assert_same_on_all_ranks(what: str, mine: str) -> None:
    """Raise ToolError on all ranks unless `mine`, which each rank read in files by itself, is the same on all."""
    said = all_gather_object(mine)
    other = next((rank for rank, words in enumerate(said) if words != said[0]), None)
    if other is not None:
        raise ToolError(
            f"the ranks differ in their {what}: {said[0]} on rank 0, {said[other]} on rank {other}",
            fix="the same command again: a node saw the run folder as it had been a moment before",
        )


def all_ready(ready: bool) -> bool:
    """Whether every rank is; one number, cheap enough for every step."""
    if ranks() == 1:
        return ready
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else "cpu"
    vote = torch.tensor(int(ready), device=device)
    dist.all_reduce(vote, op=dist.ReduceOp.MIN)
    return bool(vote)
