"""nvcc, CUDA_HOME and the host compiler against torch: what DeepSpeed's operations are compiled with at first use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from dsrun.doctor.check import Check, failure, fine, warning
from dsrun.doctor.machine import Machine, Target
from dsrun.doctor.software.compiled_code import compiled_at_start
from dsrun.errors import DsrunError, MissingError, UsageError
from dsrun.findings.finding import Finding
from dsrun.messages import Message, joined
from dsrun.wheel.platform.arch import minor_release
from dsrun.wheel.platform.cxx import all_cxx, find_cxx
from dsrun.wheel.platform.nvcc import Nvcc, find_nvcc
from dsrun.wheel.platform.toolchain import check_host, check_standard, check_versions


def _nvcc(machine: Machine) -> Nvcc | None:
    """The nvcc that torch would call: CUDA_HOME's, else the one on PATH, else /usr/local/cuda's."""
    torch = machine.packages.torch
    site = torch.path.parent if torch else None
    return find_nvcc(machine.environ, site, root=machine.root)


def look_at_toolkit(machine: Machine, target: Target) -> Iterator[Finding]:
    """torch refuses an nvcc of another major version, and DeepSpeed another minor one of most (op_builder/builder.py,
    assert_no_cuda_mismatch)."""
    torch = machine.packages.torch
    if torch is None or torch.cuda is None:
        return
    ops = compiled_at_start(machine, target, cuda=True)
    try:
        nvcc = _nvcc(machine)
    except UsageError as error:
        yield failure("cuda_toolkit_home", error.message, error.fix or "")
        return
    if nvcc is None:
        if ops:
            yield failure(
                "cuda_toolkit_missing",
                Message("there is no nvcc, and {ops} would be compiled at the start", ops=_and(ops)),
                Message(
                    "load a CUDA toolkit and set CUDA_HOME, or install a wheel with them: dsrun build-wheel --arch auto"
                ),
            )
        else:
            yield fine("cuda_toolkit", Message("no nvcc here, and none is needed for this"))
        return
    problems = [each for each in check_versions(torch.cuda, nvcc) if each.level == "error"]
    for each in problems:
        tell = failure if ops else warning
        yield tell("cuda_toolkit_version", each.message, each.fix)
    if not problems:
        yield fine(
            "cuda_toolkit",
            Message(
                "nvcc {version} in {home}, torch for CUDA {cuda}",
                version=nvcc.version,
                home=nvcc.home,
                cuda=minor_release(torch.cuda),
            ),
        )


TOOLKIT = Check(
    "cuda_toolkit",
    "CUDA toolkit",
    look_at_toolkit,
    needs="needs torch for CUDA",
    finds="nvcc of another CUDA than torch's, a CUDA_HOME without nvcc, no nvcc where a job compiles with it",
)


def look_at_host_compiler(machine: Machine, target: Target) -> Iterator[Finding]:
    """nvcc stops above its newest host compiler (crt/host_config.h), and torch's headers below their oldest."""
    torch = machine.packages.torch
    if torch is None:
        return
    ops = compiled_at_start(machine, target, cuda=False)
    tell = failure if ops else warning
    try:
        cxx = find_cxx(machine.environ)
    except MissingError as error:
        message = error.message
        if ops:
            message = Message("{error}, and {ops} would be compiled at the start", error=message, ops=_and(ops))
        yield tell("host_compiler_missing", message, error.fix or "")
        return
    except UsageError as error:
        yield failure("host_compiler_cxx", error.message, error.fix or "")
        return
    others = all_cxx(machine.environ)
    problems = check_standard(torch, cxx, others)
    try:
        nvcc = _nvcc(machine) if torch.cuda else None
    except DsrunError:  # the check of the toolkit says so
        nvcc = None
    problems += check_host(nvcc, cxx, others) if nvcc else []
    for each in problems:
        yield tell("host_compiler_version", each.message, _without_flag(each.fix))
    if not problems:
        message = str(cxx)
        if nvcc:
            message = Message("{compiler}, which nvcc {version} accepts", compiler=message, version=nvcc.version)
        yield fine("host_compiler", message)


def _without_flag(fix: str) -> str:
    """The advice for build-wheel, for compilation at first use: there is no --cxx, but the variable CXX."""
    flag, _, path = fix.partition(" ")
    if flag == "--cxx":
        folder = Path(path)
        return (
            f"export CXX={folder} CC={folder.with_name(folder.name.replace('g++', 'gcc').replace('clang++', 'clang'))}"
        )
    if isinstance(fix, Message) and isinstance(fix.values, Mapping) and "wanted" in fix.values:
        return Message("install {wanted} and name it with the variable CXX", wanted=fix.values["wanted"])
    return fix


HOST_COMPILER = Check(
    "host_compiler",
    "host compiler",
    look_at_host_compiler,
    needs="needs torch",
    finds="a C++ compiler that is newer than nvcc accepts, older than torch's headers need, or missing",
)


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else joined(" and ", [", ".join(names[:-1]), names[-1]])
