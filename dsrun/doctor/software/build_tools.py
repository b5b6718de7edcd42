"""What compiling at first use needs beside a compiler, and the processor against operations that are compiled."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from dsrun.doctor.check import Check, failure, fine, warning
from dsrun.doctor.job.zero_config import ops_of
from dsrun.doctor.machine import Machine, Target
from dsrun.doctor.software.compiled_code import compiled_at_start, compiled_ops, installed_ops
from dsrun.findings.finding import Finding
from dsrun.messages import Message
from dsrun.system.host import cpu_flags
from dsrun.wheel.platform.cxx import way_to_install
from dsrun.wheel.verify.isa_level import lacking

_AIO_HEADERS = ("usr/include/libaio.h", "usr/local/include/libaio.h")
_AIO_LIBRARIES = ("libaio.so.1", "libaio.so.1t64")


def look_at_tools(machine: Machine, target: Target) -> Iterator[Finding]:
    """ninja, Python's headers and libaio, where the job compiles or loads what needs them."""
    ops = compiled_at_start(machine, target, cuda=False)
    aio = "async_io" in ops_of(target)
    if machine.packages.torch is None or not (ops or aio):
        return
    found = []
    if ops and not _ninja(machine):
        message = Message("ninja is not installed, and {ops} would be compiled at the start", ops=", ".join(ops))
        found.append(failure("build_tools_ninja", message, "pip install ninja"))
    if aio and not _has_aio(machine, header="async_io" in ops):
        message = Message(
            "offloading to NVMe needs libaio, and libaio's header and library are not installed"
            if "async_io" in ops
            else "offloading to NVMe needs libaio, and libaio is not installed"
        )
        found.append(failure("build_tools_libaio", message, way_to_install("libaio", environ=machine.environ)))
    yield from found
    if ops and not found:
        yield warning(
            "build_tools_compiles",
            Message(
                "DeepSpeed compiles {ops} at the first start here: minutes in which the GPUs wait", ops=", ".join(ops)
            ),
            Message('compile them once: pip install "$(dsrun build-wheel --arch auto)"'),
        )
    elif not found:
        yield fine("build_tools", Message("all operations of this job are compiled already"))


def _ninja(machine: Machine) -> bool:
    own = Path(sys.executable).parent
    return bool(shutil.which("ninja", path=f"{own}:{machine.environ.get('PATH', '')}"))


def _has_aio(machine: Machine, *, header: bool) -> bool:
    if header and not any(machine.path(name).exists() for name in _AIO_HEADERS):
        return False
    folders = ("lib", "usr/lib", "lib64", "usr/lib64", "usr/local/lib", "lib/*-linux-gnu", "usr/lib/*-linux-gnu")
    return any(True for folder in folders for name in _AIO_LIBRARIES for _ in machine.root.glob(f"{folder}/{name}"))


TOOLS = Check(
    "build_tools",
    "ninja and libaio",
    look_at_tools,
    needs="needs torch, and a job that loads compiled operations",
    finds="ninja or libaio missing where the job needs them; operations that it compiles at its first start",
)


def look_at_processor(machine: Machine, _: Target) -> Iterator[Finding]:
    """A wheel that was compiled with -march=native on a newer processor ends in SIGILL."""
    folder = machine.packages.folder("deepspeed")
    ops = installed_ops(machine)
    flags = cpu_flags(machine.root)
    if folder is None or not ops or not flags:
        return
    found = []
    for op, code in compiled_ops(folder):
        lacked = lacking(code.cpu_level, flags) if code.cpu_level else ()
        if lacked:
            found.append(
                failure(
                    "cpu_level",
                    Message(
                        "DeepSpeed's compiled {op} is for {cpu_level}, and this processor lacks {lacked}: a process "
                        "that uses it dies with SIGILL (illegal instruction)",
                        op=op,
                        cpu_level=code.cpu_level,
                        lacked=", ".join(lacked),
                    ),
                    'pip install --force-reinstall "$(dsrun build-wheel --cpu x86-64-v3)"',
                )
            )
    yield from found
    if not found:
        yield fine("cpu_level", Message("this processor runs DeepSpeed's {count} compiled operations", count=len(ops)))


PROCESSOR = Check(
    "cpu_level",
    "processor",
    look_at_processor,
    needs="needs a DeepSpeed with compiled operations",
    finds="operations that were compiled for a newer processor",
)
