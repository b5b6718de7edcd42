"""nvcc, CUDA_HOME and the host compiler against torch: what DeepSpeed's operations are compiled with at first use."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.doctor.software.compiled_code import compiled_at_start
from dsrun.errors import DsrunError, MissingError, UsageError
from dsrun.findings.finding import Finding, Level
from dsrun.findings.texts import finding_of, text_of
from dsrun.messages import Message
from dsrun.wheel.platform.arch import minor_release
from dsrun.wheel.platform.cxx import all_cxx, find_cxx
from dsrun.wheel.platform.nvcc import Nvcc, find_nvcc
from dsrun.wheel.platform.ops import listed
from dsrun.wheel.platform.toolchain import check_host, check_standard, check_versions


def _nvcc(machine: MachineFacts) -> Nvcc | None:
    """The nvcc that torch would call: CUDA_HOME's, else the one on PATH, else /usr/local/cuda's."""
    torch = machine.packages.torch
    site = torch.path.parent if torch else None
    return find_nvcc(machine.environ, site, root=machine.root)


def look_at_toolkit(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """torch refuses an nvcc of another major version, and DeepSpeed another minor one of most (op_builder/builder.py,
    assert_no_cuda_mismatch)."""
    torch = machine.packages.torch
    if torch is None or torch.cuda is None:
        return
    ops = compiled_at_start(machine, target, cuda=True)
    try:
        nvcc = _nvcc(machine)
    except UsageError as error:
        yield Finding(level="error", code="cuda_toolkit_home", message=error.message, fix=error.fix or "")
        return
    if nvcc is None:
        yield finding_of("cuda_toolkit_missing", ops=listed(ops)) if ops else finding_of("cuda_toolkit.none")
        return
    problems = [each for each in check_versions(torch.cuda, nvcc) if each.level == "error"]
    for each in problems:
        yield replace(each, level="error" if ops else "warning", code="cuda_toolkit_version", where="")
    if not problems:
        cuda = minor_release(torch.cuda)
        yield finding_of("cuda_toolkit", version=nvcc.version, home=nvcc.home, cuda=cuda)


def look_at_host_compiler(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """nvcc stops above its newest host compiler (crt/host_config.h), and torch's headers below their oldest."""
    torch = machine.packages.torch
    if torch is None:
        return
    ops = compiled_at_start(machine, target, cuda=False)
    level: Level = "error" if ops else "warning"
    try:
        cxx = find_cxx(machine.environ)
    except MissingError as error:
        message = (
            text_of("host_compiler_missing.needed", error=error.message, ops=listed(ops)) if ops else error.message
        )
        yield Finding(level=level, code="host_compiler_missing", message=message, fix=error.fix or "")
        return
    except UsageError as error:
        yield Finding(level="error", code="host_compiler_cxx", message=error.message, fix=error.fix or "")
        return
    others = all_cxx(machine.environ)
    problems = check_standard(torch, cxx, others)
    try:
        nvcc = _nvcc(machine) if torch.cuda else None
    except DsrunError:  # the check of the toolkit says so
        nvcc = None
    problems += check_host(nvcc, cxx, others) if nvcc else []
    for each in problems:
        yield replace(each, level=level, code="host_compiler_version", fix=_without_flag(each.fix), where="")
    if not problems and nvcc:
        yield finding_of("host_compiler", compiler=str(cxx), version=nvcc.version)
    elif not problems:
        yield Finding(level="info", code="host_compiler", message=str(cxx))


def _without_flag(fix: str) -> str:
    """The advice for build-wheel, for compilation at first use: there is no --cxx, but the variable CXX."""
    flag, _, path = fix.partition(" ")
    if flag == "--cxx":
        cxx = Path(path)
        return f"export CXX={cxx} CC={cxx.with_name(cxx.name.replace('g++', 'gcc').replace('clang++', 'clang'))}"
    if isinstance(fix, Message) and isinstance(fix.values, Mapping) and "wanted" in fix.values:
        return text_of("host_compiler_missing.wanted", wanted=fix.values["wanted"])
    return fix
