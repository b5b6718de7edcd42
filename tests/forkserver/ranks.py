"""The ranks of one process group, forked and without an agent: as torch.distributed.run would start them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.forkserver.client import FOR_TORCH, HEAVY, ROOT
from tests.ports import free_ports

_POLL_S = 0.02


class Ranks:
    """`count` processes of `python -m module args`, whose output goes into files of `folder`, a new one.

    `env` comes besides this process's environment.
    """

    def __init__(
        self,
        folder: Path,
        module: str,
        args: Sequence[object],
        *,
        count: int,
        env: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        shared = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_ports()),
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "GLOO_SOCKET_IFNAME": "lo",
            **FOR_TORCH,
            # torch warns of its own names at every collective, which would fill the end of the output.
            "PYTHONWARNINGS": "ignore::FutureWarning",
            **(env or {}),
        }
        folder.mkdir(parents=True)
        self._logs = [folder / f"rank-{rank}.log" for rank in range(count)]
        self.processes: list[subprocess.Popen] = []
        command = [python, "-u", "-m", module, *map(str, args)]
        for rank, log in enumerate(self._logs):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            with log.open("wb") as file:
                self.processes.append(HEAVY.popen(command, env=shared | place, cwd=ROOT, stdout=file, stderr=file))

    def wait(self) -> str:
        """Wait for all; what rank 0 wrote. AssertionError where a rank fails, and the others are killed then."""
        try:
            failed = self._first_failure()
        finally:
            for process in self.processes:
                process.kill()
                process.wait()
        assert failed is None, f"rank {failed} failed:\n{self._said(failed)[-6000:]}"
        return self._said(0)

    def _said(self, rank: int) -> str:
        return self._logs[rank].read_text(errors="replace")

    def _first_failure(self) -> int | None:
        while True:
            codes = [process.poll() for process in self.processes]
            failed = [rank for rank, code in enumerate(codes) if code]
            if failed:
                return failed[0]
            if None not in codes:
                return None
            time.sleep(_POLL_S)
