"""What operations are compiled with at first use, against torch, and the processor against those that are compiled; and
the folders that they are compiled into: stale locks, network file systems, permissions."""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from dsrun.doctor.job.settings import ops_of
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.doctor.software.compiled_code import compiled_at_start, compiled_ops, installed_ops
from dsrun.errors import DsrunError, MissingError, UsageError
from dsrun.findings.finding import Finding, Level, finding_of, findings_where, text_of
from dsrun.messages import Message
from dsrun.system.build_locks import abandoned, build_locks, build_root
from dsrun.system.files import nearest_existing
from dsrun.system.host import cpu_flags
from dsrun.system.terminal.display import duration
from dsrun.wheel.platform.arch import minor_release
from dsrun.wheel.platform.cxx import all_cxx, find_cxx, way_to_install
from dsrun.wheel.platform.nvcc import Nvcc, find_nvcc
from dsrun.wheel.platform.ops import listed
from dsrun.wheel.platform.toolchain import check_host, check_standard, check_versions
from dsrun.wheel.verify.isa_level import lacking
from dsrun.zero.ops import extension_cache


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


_AIO_HEADERS = ("usr/include/libaio.h", "usr/local/include/libaio.h")
# The second is what Debian's and Ubuntu's move to 64-bit time stamps made of it (package libaio1t64).
_AIO_LIBRARIES = ("libaio.so.1", "libaio.so.1t64")


def look_at_tools(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """ninja, Python's headers and libaio, where the job compiles or loads what needs them."""
    ops = compiled_at_start(machine, target, cuda=False)
    aio = "async_io" in ops_of(target)
    if machine.packages.torch is None or not (ops or aio):
        return
    header = "async_io" in ops
    has_ninja = shutil.which("ninja", path=f"{Path(sys.executable).parent}:{machine.environ.get('PATH', '')}")
    names = {"ops": ", ".join(ops), "has_ninja": has_ninja, "header": header, "environ": machine.environ}
    lacks_aio = aio and not _has_aio(machine, header=header)
    found = findings_where(__file__, "tools", lacks_aio=lacks_aio, way_to_install=way_to_install, **names)
    ready = finding_of("build_tools_compiles", ops=", ".join(ops)) if ops else finding_of("build_tools")
    yield from list(found) or [ready]


def _has_aio(machine: MachineFacts, *, header: bool) -> bool:
    if header and not any(machine.path(name).exists() for name in _AIO_HEADERS):
        return False
    folders = ("lib", "usr/lib", "lib64", "usr/lib64", "usr/local/lib", "lib/*-linux-gnu", "usr/lib/*-linux-gnu")
    return any(True for folder in folders for name in _AIO_LIBRARIES for _ in machine.root.glob(f"{folder}/{name}"))


def look_at_processor(machine: MachineFacts, _: DoctorTarget) -> Iterator[Finding]:
    """A wheel that was compiled with -march=native on a newer processor ends in SIGILL."""
    folder = machine.packages.folder("deepspeed")
    ops = installed_ops(machine)
    flags = cpu_flags(machine.root)
    if folder is None or not ops or not flags:
        return
    found = False
    for op, code in compiled_ops(folder):
        if code.cpu_level and (lacked := lacking(code.cpu_level, flags)):
            found = True
            yield finding_of("cpu_level.lacks", op=op, cpu_level=code.cpu_level, lacked=", ".join(lacked))
    if not found:
        yield finding_of("cpu_level", count=len(ops))


def look_at_cache(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """torch.utils.file_baton waits for ever for a `lock` that a killed process has left."""
    if machine.packages.torch is None:
        return
    own = _own(machine)
    folder, found = _shown(own), []
    for place in dict.fromkeys((own, build_root(machine.environ))):
        left = abandoned(build_locks(place), machine.now(), machine.text("/proc/self/mounts") or "")
        for lock, state in left.items():
            found.append(finding_of("jit_cache_lock", lock=lock, age=duration(state.age_s(machine.now()))))
    base = nearest_existing(own)
    mount = machine.mount(base)
    ops = ", ".join(compiled_at_start(machine, target, cuda=False)) if mount and mount.shared else ""
    home = Path(machine.environ.get("HOME", "~")).expanduser()
    triton = Path(machine.environ.get("TRITON_CACHE_DIR") or home / ".triton")
    of_triton = machine.mount(nearest_existing(triton)) if machine.gpus else None
    names = {"base": base, "writable": os.access(base, os.W_OK | os.X_OK), "mount": mount, "triton": _shown(triton)}
    found += findings_where(__file__, "cache", folder=folder, ops=ops, triton_mount=of_triton, **names)
    kind = mount.kind if mount else text_of("jit_cache.local")
    yield from found or [finding_of("jit_cache", folder=folder, kind=kind)]


def _own(machine: MachineFacts) -> Path:
    """The folder that dsrun train compiles into."""
    home = machine.environ.get("HOME")
    environ = dict(machine.environ)
    if home and not environ.get("XDG_CACHE_HOME"):
        environ["XDG_CACHE_HOME"] = f"{home}/.cache"
    return extension_cache(environ)


def _shown(folder: Path) -> str:
    home = str(Path.home())
    return f"~{str(folder).removeprefix(home)}" if str(folder).startswith(f"{home}/") else str(folder)
