"""Machines that tests record: a root folder, an environment, GPUs, programs, packages and a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from dsrun.doctor.gpu.nvml import GpuState, NvmlAnswer
from dsrun.doctor.machine_facts import DoctorTarget, HostNetwork, MachineFacts, PythonPackages
from dsrun.doctor.registry import CHECKS, DEEP_CHECKS
from dsrun.errors import MissingError
from dsrun.findings.finding import Finding
from dsrun.machine.driver import DriverState, MemoryHolder, MemoryUse
from dsrun.machine.gpus import LocalGpu
from dsrun.recipe.resolve import resolve

GIB = 2**30
A100 = ("NVIDIA A100-SXM4-80GB", 80, (8, 0))
V100 = ("Tesla V100-SXM2-32GB", 32, (7, 0))
FINE = ["info"]


def driver(
    *gpus: tuple[str, int, tuple[int, int]],
    cuda: str = "13.0",
    free: float | None = None,
    holders: Sequence[MemoryHolder] = (),
) -> DriverState:
    """A driver with these GPUs (name, GiB, capability); on the first one `free` GiB are free and `holders` run."""
    found = [
        LocalGpu(index=index, name=name, uuid=f"GPU-{index}", memory_total=gib * GIB, capability=capability)
        for index, (name, gib, capability) in enumerate(gpus)
    ]
    memory = {each.uuid: MemoryUse(free=int(each.memory_total or 0)) for each in found}
    if free is not None:
        memory["GPU-0"] = MemoryUse(free=int(free * GIB), holders=tuple(holders))
    return DriverState(version="580.65.06", cuda=cuda, gpus=tuple(found), memory=memory)


class RecordedNetwork(HostNetwork):
    """Names, interfaces and ports as a test says; `taken` and `open` are ports."""

    def __init__(
        self,
        *,
        name: str = "node1",
        names: Mapping[str, Sequence[str] | None] | None = None,
        interfaces: Mapping[str, Sequence[str]] | None = None,
        taken: Sequence[int] = (),
        reachable: Sequence[tuple[str, int]] = (),
    ) -> None:
        self._name = name
        self._names = {name: ["10.0.0.1"]} if names is None else names
        self._interfaces = {"lo": ["127.0.0.1"], "eth0": ["10.0.0.1"]} if interfaces is None else interfaces
        self._taken = taken
        self._reachable = reachable

    def hostname(self) -> str:
        return self._name

    def resolve(self, host: str) -> Sequence[str] | None:
        return self._names.get(host, [])

    def interfaces(self) -> Mapping[str, Sequence[str]]:
        return self._interfaces

    def taken(self, port: int) -> str:
        return (
            f"port {port} is taken by python (process 7); the next free one is {port + 1}"
            if port in self._taken
            else ""
        )

    def reachable(self, host: str, port: int, timeout_s: float) -> bool:
        return (host, port) in self._reachable


def torch_at(folder: Path, version: str = "2.13.0+cu130", cuda: str | None = "13.0") -> Path:
    """A torch of which only version.py is there."""
    package = folder / "torch"
    package.mkdir(parents=True, exist_ok=True)
    package.joinpath("version.py").write_text(f"__version__ = {version!r}\ncuda: str = {cuda!r}\nhip = None\n")
    return package


def program_runs(programs: Mapping[str, str | tuple[int, str]]) -> Callable[[Sequence[str]], CompletedProcess[str]]:
    """Programs, by command line or by name alone: their output, or exit code and output. There are no others."""

    def run(argv: Sequence[str]) -> CompletedProcess[str]:
        said = programs.get(" ".join(argv), programs.get(argv[0]))
        if said is None:
            raise MissingError(f"there is no program {argv[0]}")
        code, output = said if isinstance(said, tuple) else (0, said)
        return CompletedProcess(argv, code, output, "")

    return run


def recorded(
    root: Path,
    files: Mapping[str, str | bytes] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    found: DriverState | None = None,
    gpus: Iterable[GpuState] = (),
    packages: Mapping[str, Path] | None = None,
    versions: Mapping[str, str] | None = None,
    network: RecordedNetwork | None = None,
    programs: Mapping[str, str | tuple[int, str]] | None = None,
    now: float = 0.0,
    **more: Any,
) -> MachineFacts:
    """A machine with these files below `root`, this driver, whose NVML tells of `gpus`, and nothing else."""
    for name, content in (files or {}).items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    run, answer = program_runs(programs or {}), NvmlAnswer(gpus=tuple(gpus))
    known = {"run": run, "run_long": run, "nvml": lambda: answer, "now": lambda: now, "ask_driver": lambda: found}
    return MachineFacts(
        root=root,
        environ={"HOME": str(root / "home")} | dict(environ or {}),
        packages=PythonPackages(dict(packages or {}), dict(versions or {})),
        network=network or RecordedNetwork(),
        **{**known, **more},
    )


def job(cwd: Path, *argv: str, **rest: Any) -> DoctorTarget:
    """The target of `dsrun train ARGV` in the folder `cwd`."""
    return DoctorTarget(recipe=resolve(argv, cwd), cwd=cwd, **rest)


def found_by(check: str, here: MachineFacts, target: DoctorTarget | None = None) -> list[Finding]:
    """What the check of this code finds, whose codes all begin with its own."""
    look = next(each.look for each in (*CHECKS, *DEEP_CHECKS) if each.code == check)
    found = list(look(here, target or DoctorTarget(cwd=here.root)))
    assert all(each.code.startswith(check) for each in found), found
    assert all(each.fix for each in found if each.level != "info"), found
    return found


def levels(found: Sequence[Finding]) -> list[str]:
    return [each.level for each in found]


def codes(found: Sequence[Finding]) -> list[str]:
    """The codes of errors and warnings."""
    return [each.code for each in found if each.level != "info"]


def levels_by_code(check: str, here: MachineFacts, target: DoctorTarget | None = None) -> dict[str, str]:
    """The level of each finding by its code."""
    return {each.code: each.level for each in found_by(check, here, target)}
