"""Whether the libraries of a wheel fit a machine's system: architecture, C libraries, processor, what they link to."""

from collections.abc import Iterable, Iterator

from dsrun.findings.finding import Finding
from dsrun.findings.texts import finding_of, text_of
from dsrun.wheel.platform.arch import minor_release
from dsrun.wheel.verify.contents import WheelLibrary, WheelReport, version_key
from dsrun.wheel.verify.isa_level import highest, lacking
from dsrun.wheel.verify.probed_machine import ProbedMachine

_DEBIAN = {"libaio.so.1": "libaio1", "libaio.so.1t64": "libaio1t64", "libgomp.so.1": "libgomp1"}
# torch loads these itself before any operation; if torch is missing or another version, that is the finding.
_WITH_TORCH = ("libc10", "libtorch", "libcudart.so", "libcublas", "libcurand", "libnccl", "libcusparse", "libcusolver")
_ELF_NAMES = {"x86_64": "x64", "aarch64": "AArch64", "arm64": "AArch64"}


def names(libraries: Iterable[WheelLibrary]) -> str:
    """The operations of these libraries, for a message."""
    return ", ".join(library.op or library.path for library in libraries)


def system_findings(report: WheelReport, machine: ProbedMachine) -> Iterator[Finding]:
    """Every problem with what is outside of Python, torch and the GPUs."""
    foreign = _ELF_NAMES.get(machine.machine)
    other = [each for each in report.libraries if each.machine and foreign and each.machine != foreign]
    if other:
        compiled, here = other[0].machine, machine.machine
        yield finding_of("platform_code", where=machine.node, ops=names(other), compiled=compiled, machine=here)
        return
    yield from _too_new(report, machine, "glibc", machine.glibc)
    yield from _too_new(report, machine, "glibcxx", machine.glibcxx)
    yield from _processor(report, machine)
    yield from _missing_libraries(report, machine)


def _too_new(report: WheelReport, machine: ProbedMachine, what: str, have: str | None) -> Iterator[Finding]:
    if have is None:
        return
    over = {each: version for each in report.libraries if (version := getattr(each, what))}
    over = {each: version for each, version in over.items() if version_key(version) > version_key(have)}
    if over:
        newest = max(over.values(), key=version_key)
        yield finding_of(what, where=machine.node, ops=names(over), wanted=newest, have=have)


def _processor(report: WheelReport, machine: ProbedMachine) -> Iterator[Finding]:
    if not machine.cpu_flags:
        return
    bound = [each for each in report.libraries if each.cpu_level and not each.reads_cpu]
    over = [each for each in bound if each.cpu_level and lacking(each.cpu_level, machine.cpu_flags)]
    if over:
        level = highest(each.cpu_level for each in over) or ""
        lacked = sorted(
            {flag for each in over if each.cpu_level for flag in lacking(each.cpu_level, machine.cpu_flags)}
        )
        yield finding_of("cpu_level.wheel", where=machine.node, ops=names(over), isa=level, lacked=", ".join(lacked))
    unknown = [each for each in report.libraries if each.cpu_level is None and each.machine == "x64"]
    if unknown:
        yield finding_of("cpu_unknown", ops=names(unknown))


def _missing_libraries(report: WheelReport, machine: ProbedMachine) -> Iterator[Finding]:
    for name in machine.absent:
        users = [each for each in report.libraries if name in each.needed]
        if not users or (name.startswith(_WITH_TORCH) and not _torch_suits(report, machine)):
            continue
        if name == "libcuda.so.1" and not machine.gpus:
            continue  # the driver's own library, where there is no driver
        fix = text_of("library_missing.package", what=_DEBIAN[name]) if name in _DEBIAN else None
        yield finding_of("library_missing", where=machine.node, ops=names(users), name=name, fix=fix)


def _torch_suits(report: WheelReport, machine: ProbedMachine) -> bool:
    """Whether torch here is the wheel's; if not, that is the finding, and not each library of its own."""
    if machine.torch is None or (report.torch and minor_release(machine.torch) != report.torch):
        return False
    return not (report.accelerator == "cuda" and minor_release(machine.torch_cuda or "") != report.cuda)
