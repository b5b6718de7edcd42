"""The ranks of a test's own program, without an agent: `run_ranks("tests.integration.many_runs", [file], 2)`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.forkserver.client import HEAVY, ONE_THREAD, ROOT
from tests.ports import free_ports

_LOOK_S = 0.02


def run_ranks(
    module: str,
    args: Sequence[str],
    ranks: int,
    env: Mapping[str, str] | None = None,
    *,
    python: str = sys.executable,
) -> None:
    """Run `python -m module args` on so many ranks of one process group, `env` besides this process's environment.

    Where a rank fails the others are killed, and an AssertionError holds the end of what it wrote to stderr.
    """
    shared = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_ports()),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GLOO_SOCKET_IFNAME": "lo",
        **ONE_THREAD,
        # torch warns of its own names at every collective, which would fill the end of the output.
        "PYTHONWARNINGS": "ignore::FutureWarning",
        **(env or {}),
    }
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder, f"rank-{rank}.log") for rank in range(ranks)]
        processes = []
        try:
            for rank, log in enumerate(logs):
                place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                with log.open("wb") as file:
                    command = [python, "-u", "-m", module, *args]
                    processes.append(
                        HEAVY.popen(command, env=shared | place, cwd=ROOT, stdout=file, stderr=file)
                    )
            failed = _first_failure(processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        assert failed is None, f"rank {failed} failed:\n{logs[failed].read_text(errors='replace')[-6000:]}"


def _first_failure(processes: Sequence[subprocess.Popen]) -> int | None:
    """Wait for the first rank that fails, or for the end of all."""
    while True:
        codes = [process.poll() for process in processes]
        failed = [rank for rank, code in enumerate(codes) if code]
        if failed:
            return failed[0]
        if None not in codes:
            return None
        time.sleep(_LOOK_S)
