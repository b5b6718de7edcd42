"""What compiling at first use needs beside a compiler, and the processor against operations that are compiled."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from dsrun.doctor.job.zero_config import ops_of
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.doctor.software.compiled_code import compiled_at_start, compiled_ops, installed_ops
from dsrun.findings.finding import Finding
from dsrun.findings.texts import finding_of
from dsrun.system.host import cpu_flags
from dsrun.wheel.platform.cxx import way_to_install
from dsrun.wheel.verify.isa_level import lacking

_AIO_HEADERS = ("usr/include/libaio.h", "usr/local/include/libaio.h")
# The second is what Debian's and Ubuntu's move to 64-bit time stamps made of it (package libaio1t64).
_AIO_LIBRARIES = ("libaio.so.1", "libaio.so.1t64")


def look_at_tools(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """ninja, Python's headers and libaio, where the job compiles or loads what needs them."""
    ops = compiled_at_start(machine, target, cuda=False)
    aio = "async_io" in ops_of(target)
    if machine.packages.torch is None or not (ops or aio):
        return
    found = []
    if ops and not _ninja(machine):
        found.append(finding_of("build_tools_ninja", ops=", ".join(ops)))
    header = "async_io" in ops
    if aio and not _has_aio(machine, header=header):
        install = way_to_install("libaio", environ=machine.environ)
        found.append(finding_of("build_tools_libaio.header" if header else "build_tools_libaio", fix=install))
    yield from found
    if not found:
        yield finding_of("build_tools_compiles", ops=", ".join(ops)) if ops else finding_of("build_tools")


def _ninja(machine: MachineFacts) -> bool:
    own = Path(sys.executable).parent
    return bool(shutil.which("ninja", path=f"{own}:{machine.environ.get('PATH', '')}"))


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
