"""Whether a wheel fits a machine: every problem is found before anything is installed."""

from collections.abc import Iterable, Iterator, Sequence

from packaging.tags import parse_tag

from dsrun.findings.finding import Finding, finding_of, text_of, worst_first
from dsrun.wheel.platform.arch import minor_release
from dsrun.wheel.platform.ops import all_ops
from dsrun.wheel.verify.contents import WheelLibrary, WheelReport, version_key
from dsrun.wheel.verify.fatbin import ServedBy, cuda_of_isa, service, sm
from dsrun.wheel.verify.isa_level import highest, lacking
from dsrun.wheel.verify.probed_machine import ProbedMachine, WheelGpu

_DEBIAN = {"libaio.so.1": "libaio1", "libaio.so.1t64": "libaio1t64", "libgomp.so.1": "libgomp1"}
# torch loads these itself before any operation; if torch is missing or another version, that is the finding.
_WITH_TORCH = ("libc10", "libtorch", "libcudart.so", "libcublas", "libcurand", "libnccl", "libcusparse", "libcusolver")
_ELF_NAMES = {"x86_64": "x64", "aarch64": "AArch64", "arm64": "AArch64"}


def names(libraries: Iterable[WheelLibrary]) -> str:
    """The operations of these libraries, for a message."""
    return ", ".join(library.op or library.path for library in libraries)


def compare(report: WheelReport, machine: ProbedMachine) -> list[Finding]:
    """Every problem of a wheel on a machine, worst first; of another package's wheel, whether pip would install it."""
    if not report.is_known:
        return worst_first([*_about(report), *_python(report, machine)])
    return worst_first(
        [
            *_about(report),
            *_python(report, machine),
            *_torch(report, machine),
            *_gpu_code(report, machine.gpus, where=machine.node),
            *_driver(report, machine),
            *_accelerator(report, machine),
            *_system(report, machine),
        ]
    )


def compare_with_gpus(report: WheelReport, gpus: Sequence[WheelGpu]) -> list[Finding]:
    """Every problem of a wheel on these GPUs, when nothing else is known of their machines."""
    if not report.is_known:
        return list(_about(report))
    unsuited = [finding_of("accelerator")] if gpus and report.is_deepspeed and report.accelerator == "cpu" else []
    return worst_first([*_about(report), *_gpu_code(report, gpus, where=""), *unsuited])


def _about(report: WheelReport) -> Iterator[Finding]:
    """Problems of the wheel on any machine."""
    if not report.is_known:
        yield finding_of("not_deepspeed", name=report.name)
        return
    # Every extension module of another package that a request names has kernels.
    gpu_ops = {op.name for op in all_ops() if op.code == "cuda"} if report.is_deepspeed else set(report.installed_ops)
    there = {library.op for library in report.libraries}
    lost = [name for name in report.installed_ops if name not in there]
    if lost:
        yield finding_of("op_missing", ops=", ".join(lost))
    empty = [each for each in report.libraries if each.op in gpu_ops and not (each.sass or each.ptx)]
    if empty and report.accelerator == "cuda":
        # Without a GPU and without DS_ACCELERATOR=cuda DeepSpeed's build takes CPU variants and says nothing.
        lto = any(each.lto for each in empty)
        yield finding_of("gpu_code_missing.lto" if lto else "gpu_code_missing", ops=names(empty))
    if not report.libraries:
        yield finding_of("wheel_without_ops")


def _python(report: WheelReport, machine: ProbedMachine) -> Iterator[Finding]:
    """Whether pip would install it there: by the tags of its file name (PEP 425, PEP 600)."""
    wheel = parse_tag(f"{report.python}-{report.abi}-{report.platform}")
    accepted = machine.tags()
    if wheel & accepted:
        return
    pairs = {(tag.interpreter, tag.abi) for tag in accepted}
    if not any((tag.interpreter, tag.abi) in pairs for tag in wheel):
        tag = report.python
        wanted = f"{tag[2]}.{tag[3:]}" if tag.startswith("cp") and tag[2:].isdigit() else tag
        here = machine.python_version
        yield finding_of("python_tag", where=machine.node, wanted=wanted, abi=report.abi, version=here)
    if not any(tag.platform in {other.platform for other in accepted} for tag in wheel):
        where, wanted, here = machine.node, report.platform, machine.machine
        if machine.glibc:
            yield finding_of("platform_tag.glibc", where=where, platform=wanted, machine=here, glibc=machine.glibc)
        else:
            yield finding_of("platform_tag", where=where, platform=wanted, machine=here)


def _torch(report: WheelReport, machine: ProbedMachine) -> Iterator[Finding]:
    if report.torch is None or not report.libraries:
        return
    install = f"pip install 'torch=={report.torch}.*'"
    if machine.torch is None:
        yield finding_of("torch_missing", where=machine.node, torch=report.torch, fix=install)
        return
    if minor_release(machine.torch) != report.torch:
        # deepspeed/ops/op_builder/builder.py, validate_torch_version: every operation raises RuntimeError.
        built, here = report.torch, machine.torch
        yield finding_of("torch_version", where=machine.node, built=built, version=here, install=install)
    elif report.cuda and machine.torch_cuda and minor_release(machine.torch_cuda) != report.cuda:
        yield finding_of("torch_cuda", where=machine.node, cuda=report.cuda, version=machine.torch_cuda)
    elif report.accelerator == "cuda" and machine.torch_cuda is None:
        fix = text_of("torch_cuda.cpu.install", torch=report.torch)
        yield finding_of("torch_cuda.cpu", where=machine.node, cuda=report.cuda, torch=machine.torch, fix=fix)
    other = [each for each in report.libraries if each.cxx11_abi not in (None, machine.cxx11_abi)]
    if other and machine.cxx11_abi is not None:
        variant = "cxx11_abi.old" if machine.cxx11_abi else "cxx11_abi.new"
        yield finding_of(variant, where=machine.node, ops=names(other))


# By what `service` gives: the finding for the libraries that a GPU cannot run as they are.
_SERVED: dict[ServedBy, str] = {"none": "arch_missing", "ptx": "arch_ptx", "tegra": "arch_tegra"}


def _gpu_code(report: WheelReport, gpus: Sequence[WheelGpu], where: str) -> Iterator[Finding]:
    with_code = [each for each in report.libraries if each.sass or each.ptx]
    for gpu in {gpu.capability: gpu for gpu in gpus}.values():
        for kind, code in _SERVED.items():
            some = [each for each in with_code if service(each.sass, each.ptx, gpu.capability) == kind]
            if some:
                name = "" if gpu.name == sm(gpu.capability) else f" ({gpu.name})"
                yield finding_of(
                    code, where=where, ops=names(some), sm=sm(gpu.capability), gpu=name, arch=_capability(gpu)
                )


def _capability(gpu: WheelGpu) -> str:
    return "{}.{}".format(*gpu.capability)


def _driver(report: WheelReport, machine: ProbedMachine) -> Iterator[Finding]:
    if machine.driver_cuda is None:
        return
    known = version_key(machine.driver_cuda)
    if report.cuda and version_key(report.cuda)[0] > known[0]:
        # Within a major version every driver of it will do (CUDA Compatibility, "Minor Version Compatibility").
        yield finding_of(
            "driver_old", where=machine.node, cuda=report.cuda, driver=machine.driver or "", known=machine.driver_cuda
        )
        return
    for gpu in {gpu.capability: gpu for gpu in machine.gpus}.values():
        stuck = [
            each
            for each in report.libraries
            if each.ptx_isa
            and service(each.sass, each.ptx, gpu.capability) == "ptx"
            and version_key(cuda_of_isa(each.ptx_isa)) > known
        ]
        if stuck:
            newest = max((each.ptx_isa for each in stuck if each.ptx_isa), key=version_key)
            yield finding_of(
                "driver_ptx",
                where=machine.node,
                ops=names(stuck),
                sm=sm(gpu.capability),
                newest=cuda_of_isa(newest),
                known=machine.driver_cuda,
                update=text_of("driver_old.fix"),
                add=text_of("arch_missing.fix", arch=_capability(gpu)),
            )


def _accelerator(report: WheelReport, machine: ProbedMachine) -> Iterator[Finding]:
    """DeepSpeed uses a compiled operation only under the accelerator it was built for (OpBuilder.load)."""
    if not report.is_deepspeed:
        return
    if report.accelerator == "cpu" and machine.gpus and machine.torch_cuda:
        yield finding_of("accelerator", where=machine.node)
    if report.accelerator == "cuda" and not machine.gpus and machine.torch_cuda:
        yield finding_of("no_gpu.wheel", where=machine.node)


def _system(report: WheelReport, machine: ProbedMachine) -> Iterator[Finding]:
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
    unknown = [each for each in report.libraries if each.op and each.cpu_level is None and each.machine == "x64"]
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
