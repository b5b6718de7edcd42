"""The context of a build: the target environment, the GPUs and the tools, checked against each other."""

import os
import platform
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dsrun.datafiles import data_folder, read_toml
from dsrun.errors import MissingError, ToolError, UsageError
from dsrun.findings.finding import Finding, errors_in, finding_of
from dsrun.findings.show import refusal
from dsrun.hardware.cluster_gpus import cluster_gpus, cluster_nodes
from dsrun.machine.gpus import visible_gpus
from dsrun.machine.torch_facts import TorchFacts, torch_facts
from dsrun.refusals import Refusals
from dsrun.system.process.proc import capture
from dsrun.wheel.compile.build_environment import without_flags
from dsrun.wheel.platform.cpu import CPUINFO, common_level, default_level, host_level, resolve_level
from dsrun.wheel.platform.cxx import CxxCompiler, all_cxx, find_cxx
from dsrun.wheel.platform.gpu_target import BuildTarget, check_archs, decide_target
from dsrun.wheel.platform.nvcc import Nvcc, compiled_by, find_nvcc
from dsrun.wheel.platform.toolchain import check_tools
from dsrun.wheel.verify.probe import OLDEST_PYTHON

# Xeon Phi has AVX-512, but not all parts that x86-64-v4 needs.
_LESS = "knl"


def node_level(features: Iterable[str]) -> str | None:
    """The highest level that one node's features imply; None when none of them names a processor.

    Features mean "at least": a node called `avx2` and `genoa` has what a Genoa has. A level is its own feature."""
    levels = {word.strip().lower().replace("_", "-") for word in features}
    table: dict[str, list[str]] = read_toml(data_folder("build") / "cpu.toml")["features"]
    known = {word.replace("_", "-"): level for level, names in table.items() for word in (level, *names)}
    if _LESS in levels:
        return known[_LESS]
    return max((known[word] for word in levels & set(known)), default=None)


def cluster_level(nodes: Iterable[Iterable[str]]) -> str | None:
    """The level common to all nodes by their features; None without nodes, or when one has no such feature."""
    levels = [node_level(features) for features in nodes]
    known = [level for level in levels if level]
    return common_level(known) if levels and known == levels else None


# The target environment: its Python, whether it is a system's (PEP 668), where headers are missing, and what the build
# imports from it before a compiler is called.
_ENVIRONMENT = """
import os, sys, sysconfig
print("dsrun:", "python", "%d.%d" % sys.version_info[:2])
managed = os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
if sys.prefix == getattr(sys, "base_prefix", sys.prefix) and os.path.exists(managed):
    print("dsrun:", "managed", managed)
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    print("dsrun:", "headerless", sysconfig.get_path("include"))
from importlib.metadata import version, PackageNotFoundError
for name in ("setuptools", "wheel"):
    try:
        print("dsrun:", name, version(name))
    except PackageNotFoundError:
        pass
"""
_BDIST_WHEEL = "70.1"
"""First setuptools that makes wheels without the package `wheel` (its changelog)."""
_TIMEOUT_S = 60.0
_TEXTS = Refusals(__file__, "refusals.toml")
_MISSING = ("no_torch", "no_nvcc", "no_cuda_runtime", "need_missing")
"""Codes of findings that are about something that is not installed."""


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """The options of build-wheel as typed; None is not given."""

    package: str | None = None
    arch: str = "auto"
    ops: str | None = None
    source: str | None = None
    cpu: str | None = None
    jobs: int | None = None
    cxx: str | None = None
    python: str | None = None
    partition: str | None = None
    symbols: bool = False


@dataclass
class BuildDiagnostics:
    """Collects findings; errors among them are raised as one."""

    findings: list[Finding] = field(default_factory=list)

    def add(self, findings: Iterable[Finding]) -> None:
        every = tuple(findings)
        self.findings += [finding for finding in every if finding.level != "error"]
        errors = errors_in(every)
        if errors:
            raise refusal(errors, kind=MissingError if errors[0].code in _MISSING else UsageError)


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """The environment a wheel is for, its target, and the tools to build it."""

    python: Path
    torch: TorchFacts
    target: BuildTarget
    cxx: CxxCompiler
    nvcc: Nvcc | None
    level: str


def detect_build_context(
    options: BuildOptions, environ: Mapping[str, str], diagnostics: BuildDiagnostics
) -> BuildContext:
    """The environment, the target and the tools. Raises UsageError, MissingError or ToolError when they do not fit."""
    python = _interpreter(options.python, environ)
    environment = _environment(python)
    torch = _torch(python, environment)
    target = decide_target(
        options.arch, torch_cuda=torch.cuda, gpus=visible_gpus(environ), gres=cluster_gpus, partition=options.partition
    )
    cxx = find_cxx(environ, options.cxx)
    cuda = target.kind == "cuda"
    nvcc = find_nvcc(environ, torch.site_packages, cuda=torch.cuda) if cuda else None
    diagnostics.add(check_tools(target.kind, torch, nvcc, cxx, others=all_cxx(environ)))
    _check_packages(python, environment, without_flags(environ))
    if cuda:
        found = check_archs(
            target.archs,
            nvcc=nvcc.version if nvcc else None,
            compiled=compiled_by(nvcc) if nvcc else None,
            torch_version=torch.version,
            torch_cuda=torch.cuda or "",
            machine=platform.machine(),
        )
        diagnostics.add(found)
    level = options.cpu or _default_level(options.partition, diagnostics)
    resolve_level(cxx, level)
    return BuildContext(python=python, torch=torch, target=target, cxx=cxx, nvcc=nvcc, level=level)


def _interpreter(named: str | None, environ: Mapping[str, str]) -> Path:
    """The interpreter whose environment the wheel is for. Not resolved: a venv's python is a link to another."""
    if named is None:
        return Path(sys.executable)
    found = shutil.which(named, path=environ.get("PATH"))
    if found is None:
        raise UsageError(f"--python {named} is not a program", fix="give the path of the environment's bin/python")
    return Path(found).absolute()


def _environment(python: Path) -> dict[str, str]:
    """What `_ENVIRONMENT` says of it, by name. Raises UsageError for a Python that is too old."""
    lines = capture([str(python), "-c", _ENVIRONMENT], seconds=_TIMEOUT_S).stdout.splitlines()
    found = dict(line.split(maxsplit=2)[1:] for line in lines if line.startswith("dsrun: "))
    version = found.get("python", "")
    if version and tuple(map(int, version.split("."))) < OLDEST_PYTHON:
        oldest = "{}.{}".format(*OLDEST_PYTHON)
        raise _TEXTS.error("python.old", python=python, version=version, oldest=oldest)
    return found


def _install(python: Path, environment: Mapping[str, str], package: str) -> str:
    """The command that brings `package` into it; pip refuses to write into a system's Python."""
    if "managed" in environment:
        every = f"torch 'setuptools>={_BDIST_WHEEL}' ninja"
        return f"{python} -m venv env && env/bin/python -m pip install {every}, then --python env/bin/python"
    return f"{python} -m pip install {package}"


def _torch(python: Path, environment: Mapping[str, str]) -> TorchFacts:
    torch = torch_facts(str(python))
    if torch is None:
        raise _TEXTS.error("python.no_torch", python=python, install=_install(python, environment, "torch"))
    if torch.hip:
        raise UsageError(f"torch {torch.version} is built for ROCm", fix="dsrun builds for CUDA and for CPUs")
    return torch


def _check_packages(python: Path, found: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Check for the build tools in the target environment, as there is no build isolation."""
    from packaging.version import Version

    if folder := found.get("headerless"):
        raise _TEXTS.error("python.headers", python=python, folder=folder, version=found["python"])
    setuptools = found.get("setuptools")
    if setuptools is None or ("wheel" not in found and Version(setuptools) < Version(_BDIST_WHEEL)):
        state = f"setuptools {setuptools} without the package wheel" if setuptools else "no setuptools"
        raise MissingError(f"{python} has {state}", fix=_install(python, found, f"'setuptools>={_BDIST_WHEEL}'"))
    if shutil.which("ninja", path=f"{python.parent}{os.pathsep}{environ.get('PATH', '')}") is None:
        raise MissingError("there is no ninja to run compilers with", fix=_install(python, found, "ninja"))


def _default_level(partition: str | None, diagnostics: BuildDiagnostics) -> str:
    """The level of all nodes of the cluster if their features name one, else the default for this machine."""
    try:
        nodes = cluster_nodes(partition) or ()
    except ToolError as error:
        diagnostics.add([finding_of("slurm_unreachable", error=error.message)])
        nodes = ()
    known = cluster_level([node.features for node in nodes])
    cpuinfo = CPUINFO.read_text(encoding="utf-8", errors="replace") if CPUINFO.exists() else ""
    return known or default_level(host_level(cpuinfo))
