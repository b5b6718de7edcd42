"""What a supervisor is asked to keep running, and what it says in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dsrun.launch.policy import Limits
from dsrun.launch.topology import Topology

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training run, as one machine sees it.

    `program` are the words for torch.distributed.run: `train.py --flag`, or `--module NAME --flag`, or
    `--no-python ./program --flag`. `env` is the whole environment of agent and ranks. `port` None takes a free one for
    every attempt, which is only possible on one node. `foreign` is every program but dsrun.train: no remedy is applied
    to it and no sign of life expected of it. `hang_timeout` is in seconds, 0 for never, None for the default of
    `dsrun.launch.watch`; `patience` the seconds a run that was told to stop may take, None for as long as it beats.
    `micro_batch` and `accumulation` are those of the recipe, before any remedy. `imports` are modules that the ranks
    will load late, for the warm process to load early; one that is not there is passed over. `again` is what goes on
    with the run after it was told to stop; with `--resume auto` added where `resumes` is False and something was saved.
    """

    topology: Topology
    run: Path
    program: Sequence[str]
    env: Mapping[str, str]
    nnodes: int = 1
    node_rank: int = 0
    host: str = LOOPBACK
    port: int | None = None
    limits: Limits = field(default_factory=Limits)
    hang_timeout: float | None = None
    patience: float | None = None
    warm: bool = True
    foreign: bool = False
    terminal_width: int | None = None
    echo: bool = False
    micro_batch: int | None = None
    accumulation: int = 1
    imports: Sequence[str] = ()
    again: str = "the same command"
    resumes: bool = True

    @property
    def world_size(self) -> int:
        """Ranks in all, where every node runs as many."""
        return self.nnodes * self.topology.workers


@dataclass(frozen=True)
class Outcome:
    """How the run ended: the exit code to pass on, and one line where it failed or was told to stop.

    `advice` says why the run was not started again, and what would help; `log` is where the whole story stands.
    """

    exit_code: int
    message: str | None = None
    advice: str | None = None
    log: str | None = None
