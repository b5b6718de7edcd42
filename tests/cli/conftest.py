"""`dsrun` as a user calls it: a process of its own, in an empty folder, without a GPU in sight.

Most of them are forked (`tests.forkserver`); start-up, streams and terminals are tested with new processes.
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.forkserver.client import LIGHT

Finished = subprocess.CompletedProcess[str]
Dsrun = Callable[..., Finished]

# A worker's variables would make `dsrun train` join a run, and GPUs would change how many workers there are.
MEDDLING = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_", "SLURM_", "ACCELERATE_", "DSRUN_"),
    *("OMPI_", "PMI_", "PBS_", "LSB_", "FLUX_", "PET_", "JOB_COMPLETION_INDEX"),
    *("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "NO_COLOR", "FORCE_COLOR"),
)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The folder `dsrun` is called in."""
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


@pytest.fixture
def environ() -> dict[str, str]:
    """The environment of a shell in which nothing has been set for dsrun."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(MEDDLING)}
    return kept | {"CUDA_VISIBLE_DEVICES": "", "COLUMNS": "80"}


@pytest.fixture
def nowhere(environ: dict[str, str], tmp_path: Path) -> Path:
    """No SLURM's programs on PATH, whatever this machine has."""
    tools = tmp_path / "tools"
    tools.mkdir()
    environ["PATH"] = str(tools)
    environ.pop("SLURM_CONF", None)
    return tools


@pytest.fixture
def programs(environ: dict[str, str], tmp_path: Path) -> Path:
    """A folder for SLURM's programs, in front of PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    environ["PATH"] = f"{folder}:{environ['PATH']}"
    return folder


@pytest.fixture
def dsrun(here: Path, environ: dict[str, str]) -> Dsrun:
    """Call it: `dsrun("train", "--help")`; `python` are flags of the interpreter."""

    def call(*args: str, python: tuple[str, ...] = ()) -> Finished:
        command = [sys.executable, *python, "-m", "dsrun", *args]
        return LIGHT.run(command, cwd=here, env=environ, text=True, capture_output=True, stdin=subprocess.DEVNULL)

    return call


@pytest.fixture
def refused(dsrun: Dsrun, here: Path) -> Callable[..., str]:
    """Call it with what it does not take, before anything is written: the error, of one line beside notes."""

    def call(*args: str) -> str:
        done = dsrun(*args)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        (error,) = [line for line in done.stderr.splitlines() if not line.startswith("note: ")]
        assert error.startswith("error: ")
        assert list(here.iterdir()) == []
        return error

    return call


@pytest.fixture
def on_terminal(here: Path, environ: dict[str, str]) -> Callable[..., str]:
    """Call it with a terminal for stdin, stdout and stderr: what appears there."""

    def call(*args: str) -> str:
        keyboard, terminal = pty.openpty()
        child = subprocess.Popen(
            [sys.executable, "-m", "dsrun", *args],
            cwd=here,
            env={**environ, "TERM": "xterm-256color"},
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
        )
        os.close(terminal)
        seen = bytearray()
        with suppress(OSError):  # Linux ends a terminal that nobody holds any more with EIO
            while chunk := os.read(keyboard, 4096):
                seen += chunk
        child.wait()
        os.close(keyboard)
        return seen.decode()

    return call
