"""Whether the libraries of a wheel fit a machine's system: architecture, C libraries, processor, what they link to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dsrun.findings.finding import Finding
from dsrun.messages import Message
from dsrun.wheel.target.arch import minor_release
from dsrun.wheel.verify.contents import Library, WheelReport, version_key
from dsrun.wheel.verify.isa_level import highest, lacking
from dsrun.wheel.verify.machine import Machine

_DEBIAN = {"libaio.so.1": "libaio1", "libaio.so.1t64": "libaio1t64", "libgomp.so.1": "libgomp1"}
# torch loads these itself before any operation; if torch is missing or another version, that is the finding.
_WITH_TORCH = ("libc10", "libtorch", "libcudart.so", "libcublas", "libcurand", "libnccl", "libcusparse", "libcusolver")
_ELF_NAMES = {"x86_64": "x64", "aarch64": "AArch64", "arm64": "AArch64"}


def error(code: str, message: str, fix: str, where: str = "") -> Finding:
    """What keeps a wheel from working."""
    return Finding(level="error", code=code, message=message, fix=fix, where=where)


def names(libraries: Iterable[Library]) -> str:
    """The operations of these libraries, for a message."""
    return ", ".join(library.op or library.path for library in libraries)


def system_findings(report: WheelReport, machine: Machine) -> Iterator[Finding]:
    """Every problem with what is outside of Python, torch and the GPUs."""
    foreign = _ELF_NAMES.get(machine.machine)
    other = [each for each in report.libraries if each.machine and foreign and each.machine != foreign]
    if other:
        message = Message(
            "{ops}: compiled for {compiled}, this machine is {machine}",
            ops=names(other),
            compiled=other[0].machine,
            machine=machine.machine,
        )
        yield error("platform_code", message, Message("build it on such a machine"), machine.node)
        return
    yield from _too_new(report, machine, "glibc", machine.glibc)
    yield from _too_new(report, machine, "glibcxx", machine.glibcxx)
    yield from _processor(report, machine)
    yield from _missing_libraries(report, machine)


def _too_new(report: WheelReport, machine: Machine, what: str, have: str | None) -> Iterator[Finding]:
    if have is None:
        return
    over = {each: version for each in report.libraries if (version := getattr(each, what))}
    over = {each: version for each, version in over.items() if version_key(version) > version_key(have)}
    if over:
        newest = max(over.values(), key=version_key)
        message = Message(
            "{ops}: needs glibc {wanted}, here is {have}"
            if what == "glibc"
            else "{ops}: needs a libstdc++ with GLIBCXX_{wanted}, here is {have}",
            ops=names(over),
            wanted=newest,
            have=have,
        )
        yield error(what, message, Message("build it on the oldest system it must run on"), machine.node)


def _processor(report: WheelReport, machine: Machine) -> Iterator[Finding]:
    if not machine.cpu_flags:
        return
    bound = [each for each in report.libraries if each.cpu_level and not each.reads_cpu]
    over = [each for each in bound if each.cpu_level and lacking(each.cpu_level, machine.cpu_flags)]
    if over:
        level = highest(each.cpu_level for each in over) or ""
        lacked = sorted(
            {flag for each in over if each.cpu_level for flag in lacking(each.cpu_level, machine.cpu_flags)}
        )
        message = Message(
            "{ops}: compiled for {level}, this processor lacks {lacked}: a process that uses it dies with SIGILL",
            ops=names(over),
            level=level,
            lacked=", ".join(lacked),
        )
        yield error("cpu_level", message, Message("build it with --cpu x86-64-v3 or lower"), machine.node)
    unknown = [each for each in report.libraries if each.cpu_level is None and each.machine == "x64"]
    if unknown:
        message = Message(
            "{ops}: cannot tell which processors it is for, as objdump is not installed", ops=names(unknown)
        )
        yield Finding(level="info", code="cpu_unknown", message=message, fix=Message("install binutils"))


def _missing_libraries(report: WheelReport, machine: Machine) -> Iterator[Finding]:
    for name in machine.absent:
        users = [each for each in report.libraries if name in each.needed]
        if not users or (name.startswith(_WITH_TORCH) and not _torch_suits(report, machine)):
            continue
        if name == "libcuda.so.1" and not machine.gpus:
            continue  # the driver's own library, where there is no driver
        fix = (
            Message("install {what}", what=_DEBIAN[name])
            if name in _DEBIAN
            else Message("install what provides {name}", name=name)
        )
        message = Message("{ops}: needs {name}, which is not on this machine", ops=names(users), name=name)
        yield error("library_missing", message, fix, machine.node)


def _torch_suits(report: WheelReport, machine: Machine) -> bool:
    """Whether torch here is the wheel's; if not, that is the finding, and not each library of its own."""
    if machine.torch is None or (report.torch and minor_release(machine.torch) != report.torch):
        return False
    return not (report.accelerator == "cuda" and minor_release(machine.torch_cuda or "") != report.cuda)
