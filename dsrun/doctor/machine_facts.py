"""What checks may look at: files of the kernel, environment, programs and the driver; and the job that is to run.

Checks reach the machine through these alone, so that a recorded machine can stand in for the real one."""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from subprocess import CompletedProcess

from dsrun.doctor.gpu.nvml import NvmlAnswer, query_gpus
from dsrun.errors import DsrunError, UsageError
from dsrun.findings.finding import Finding
from dsrun.machine.driver import DriverState, query_driver
from dsrun.machine.gpus import LocalGpu
from dsrun.machine.torch_facts import TorchFacts, facts_at
from dsrun.recipe.recipe import Recipe
from dsrun.system import net
from dsrun.system.host import ROOT, VERSIONED, MountPoint, mount_in, versions
from dsrun.system.process.proc import capture, within

LOOKED_AT = (*VERSIONED, "nvidia-nccl-cu12", "nvidia-nccl-cu13")


class PythonPackages:
    """The packages of the Python that trains: where they are and which versions, without importing any of them.

    A recorded machine has others: `places` are folders by the packages' names, `numbers` their versions."""

    def __init__(self, places: dict[str, Path] | None = None, numbers: dict[str, str] | None = None) -> None:
        self._places = places
        self._numbers = numbers

    def folder(self, name: str) -> Path | None:
        """Where the top-level package `name` is; None where it is not installed."""
        if self._places is not None:
            return self._places.get(name)
        # Of a top-level name find_spec imports nothing.
        spec = find_spec(name)
        places = list(spec.submodule_search_locations or ()) if spec else []
        return Path(places[0]) if places else None

    @cached_property
    def versions(self) -> dict[str, str]:
        return versions(LOOKED_AT) if self._numbers is None else self._numbers

    @cached_property
    def torch(self) -> TorchFacts | None:
        """torch, by its file version.py; None where it is not installed, or does not say its version."""
        folder = self.folder("torch")
        return facts_at(folder, (sys.implementation.cache_tag or "").replace("cpython-", "cp")) if folder else None


RESOLVE_S = 3.0
"""A name service that takes longer, as a resolver without a network does, holds up each rank's start."""


class HostNetwork:
    """Names, addresses and ports of this machine; a recorded machine answers otherwise."""

    def hostname(self) -> str:
        return socket.gethostname()

    def resolve(self, host: str) -> Sequence[str] | None:
        """The addresses of `host`; [] where no name service knows it, None where none answers within RESOLVE_S."""
        return within(RESOLVE_S, lambda: net.resolve(host), None)

    def interfaces(self) -> Mapping[str, Sequence[str]]:
        """The addresses of each interface that is up, in the order of the system."""
        return net.addresses()

    def taken(self, port: int) -> str:
        """Why nothing can listen on `port`, and the next free one of the ten after it; "" where it is free."""
        try:
            net.claim_port(port, find=None)
        except UsageError as error:
            return error.message
        return ""

    def reachable(self, host: str, port: int, timeout_s: float) -> bool:
        """Whether `host` accepts a connection within `timeout_s` seconds, its name looked up."""
        return within(timeout_s, lambda: net.reachable(host, port, timeout_s), False)


PROGRAM_S = 5.0
DEEP_PROGRAM_S = 300.0
"""Seconds for a program that tests the hardware itself, such as `dcgmi diag`."""
RunCommand = Callable[[Sequence[str]], "CompletedProcess[str]"]


_run = partial(capture, seconds=PROGRAM_S, changes={"LC_ALL": "C"})
_run_long = partial(capture, seconds=DEEP_PROGRAM_S, changes={"LC_ALL": "C"})


@dataclass(frozen=True)
class MachineFacts:
    """This machine, or a recorded one below `root`.

    `run` runs a program to its end and raises DsrunError where there is none, or it takes more than PROGRAM_S seconds;
    `now` is the time in seconds since the epoch; `ask_driver` asks NVIDIA's driver; `packages` are those of the Python
    that trains; `network` knows names, addresses and ports.

    `run_long` gives a program DEEP_PROGRAM_S; `nvml` says all that the driver knows of each GPU's state; `statvfs` says
    how full the file system of a path is."""

    root: Path = ROOT
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    run: RunCommand = _run
    now: Callable[[], float] = time.time
    ask_driver: Callable[[], DriverState | None] = query_driver
    packages: PythonPackages = field(default_factory=PythonPackages)
    network: HostNetwork = field(default_factory=HostNetwork)
    run_long: RunCommand = _run_long
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

    def mount(self, path: Path) -> MountPoint | None:
        """The file system that holds `path`, links followed; None where /proc does not tell."""
        return mount_in(self.text("/proc/self/mounts") or "", path)

    def answer(self, *argv: str) -> str | None:
        """What a program writes to stdout; None where there is none, or it fails."""
        try:
            done = self.run(argv)
        except DsrunError:
            return None
        return done.stdout if done.returncode == 0 else None

    @property
    def driver(self) -> DriverState | None:
        """NVIDIA's driver, asked once, which takes seconds where it has to initialise the GPUs; None without one."""
        with self._asking:
            return self._driver

    @cached_property
    def _driver(self) -> DriverState | None:
        return self.ask_driver()

    @property
    def gpus(self) -> list[LocalGpu]:
        """The GPUs that a process started here would see."""
        return self.driver.visible(self.environ) if self.driver else []


@dataclass(frozen=True, kw_only=True)
class DoctorTarget:
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

    def runs_on(self, machine: MachineFacts) -> bool:
        """Whether the job runs on this machine; one for SLURM does not run on the login node."""
        return not self.nodes or bool(machine.environ.get("SLURM_JOB_ID"))
