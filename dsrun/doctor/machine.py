"""What checks may look at: files of the kernel, environment, programs and the driver; and the job that is to run.

Checks reach the machine through these alone, so that a recorded machine can stand in for the real one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from subprocess import CompletedProcess
from typing import TYPE_CHECKING

from dsrun.doctor.driver import Driver, query_driver
from dsrun.doctor.gpu.nvml import NvmlAnswer, query_gpus
from dsrun.doctor.network import Network
from dsrun.doctor.packages import Packages
from dsrun.errors import DsrunError
from dsrun.findings import Finding
from dsrun.system.gpus import Gpu
from dsrun.system.host import ROOT
from dsrun.system.proc import capture

if TYPE_CHECKING:
    from dsrun.recipe.recipe import Recipe

PROGRAM_S = 5.0
DEEP_PROGRAM_S = 300.0
"""Seconds for a program that tests the hardware itself, such as `dcgmi diag`."""
Run = Callable[[Sequence[str]], "CompletedProcess[str]"]


def _run(argv: Sequence[str]) -> CompletedProcess[str]:
    return capture(argv, seconds=PROGRAM_S, changes={"LC_ALL": "C"})


def _run_long(argv: Sequence[str]) -> CompletedProcess[str]:
    return capture(argv, seconds=DEEP_PROGRAM_S, changes={"LC_ALL": "C"})


@dataclass(frozen=True)
class Machine:
    """This machine, or a recorded one below `root`.

    `run` runs a program to its end and raises DsrunError where there is none, or it takes more than PROGRAM_S seconds;
    `now` is the time in seconds since the epoch; `ask_driver` asks NVIDIA's driver; `packages` are those of the Python
    that trains; `network` knows names, addresses and ports.

    `run_long` gives a program DEEP_PROGRAM_S; `nvml` says all that the driver knows of each GPU's state; `statvfs` says
    how full the file system of a path is.
    """

    root: Path = ROOT
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    run: Run = _run
    now: Callable[[], float] = time.time
    ask_driver: Callable[[], Driver | None] = query_driver
    packages: Packages = field(default_factory=Packages)
    network: Network = field(default_factory=Network)
    run_long: Run = _run_long
    nvml: Callable[[], NvmlAnswer] = query_gpus
    statvfs: Callable[[Path], os.statvfs_result] = os.statvfs
    _asking: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def path(self, name: str) -> Path:
        """The file `name` ("/proc/meminfo") of this machine."""
        return self.root / name.lstrip("/")

    def text(self, name: str) -> str | None:
        """The content of a file without the white space around it; None where it cannot be read."""
        try:
            return self.path(name).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def answer(self, *argv: str) -> str | None:
        """What a program writes to stdout; None where there is none, or it fails."""
        try:
            done = self.run(argv)
        except DsrunError:
            return None
        return done.stdout if done.returncode == 0 else None

    @property
    def driver(self) -> Driver | None:
        """NVIDIA's driver, asked once, which takes seconds where it has to initialise the GPUs; None without one."""
        with self._asking:
            return self._driver

    @cached_property
    def _driver(self) -> Driver | None:
        return self.ask_driver()

    @property
    def gpus(self) -> list[Gpu]:
        """The GPUs that a process started here would see."""
        return self.driver.visible(self.environ) if self.driver else []


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is to run: a training recipe if one is known, its run folder, and the ranks of this machine (None: one a
    GPU). `refused` says why a run file is not a valid recipe; `cwd` is where its relative paths begin; `nodes` of SLURM
    the job asks for, 0 where it is not meant for SLURM."""

    recipe: Recipe | None = None
    refused: Finding | None = None
    output: Path | None = None
    nproc: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    cwd: Path = field(default_factory=Path.cwd)
    nodes: int = 0

    def runs_on(self, machine: Machine) -> bool:
        """Whether the job runs on this machine; one for SLURM does not run on the login node."""
        return not self.nodes or bool(machine.environ.get("SLURM_JOB_ID"))
