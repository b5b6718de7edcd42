"""What a rank shows of itself to whoever watches it: signs of life, how far it is, and whether it was told to stop."""

from __future__ import annotations

import faulthandler
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

from dsrun.runs.heartbeat import Heart
from dsrun.system import variables
from dsrun.train.lifecycle.failure import Progress
from dsrun.train.lifecycle.preemption import PreemptionHandler, stopping_from


@dataclass
class RankContext:
    """One rank's ties to the outside, from its first line to its last."""

    heart: Heart
    stopping: PreemptionHandler
    progress: Progress = field(default_factory=Progress)

    @classmethod
    def alone(cls) -> Self:
        """Nobody watches, and nobody asks to stop."""
        return cls(Heart(None, 0), stopping_from({}))


def is_supervised(environ: Mapping[str, str]) -> bool:
    """Whether a supervisor watches this rank, which then keeps the ledger of failures and restarts itself."""
    return variables.HEARTBEAT in environ


def show_stacks_in(log: Path | None) -> None:
    """Have SIGUSR2 write the stacks of all threads to `log`, None: to stderr. Also a rank that hangs in a collective
    answers, as no Python code has to run for it."""
    if log is None:
        faulthandler.register(signal.SIGUSR2, all_threads=True)
        return
    # faulthandler keeps the descriptor and not the file, which must stay open as long as the process lives.
    _logs.append(log.open("a", encoding="utf-8"))
    faulthandler.register(signal.SIGUSR2, file=_logs[-1], all_threads=True)


_logs: list[IO[str]] = []
