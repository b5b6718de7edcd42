"""Whether a wheel fits a machine: every problem is found before anything is installed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from packaging.tags import parse_tag

from dsrun.findings import Finding, Level, Message
from dsrun.wheel.target.arch import minor_release
from dsrun.wheel.target.ops import all_ops
from dsrun.wheel.verify.contents import Library, WheelReport, version_key
from dsrun.wheel.verify.fatbin import Service, cuda_of_isa, service, sm
from dsrun.wheel.verify.isa_level import highest, lacking
from dsrun.wheel.verify.machine import Gpu, Machine

_DEBIAN = {"libaio.so.1": "libaio1", "libaio.so.1t64": "libaio1t64", "libgomp.so.1": "libgomp1"}
_REBUILD = Message("build it with dsrun build-wheel in this environment")
# torch loads these itself before any operation; if torch is missing or another version, that is the finding.
_WITH_TORCH = ("libc10", "libtorch", "libcudart.so", "libcublas", "libcurand", "libnccl", "libcusparse", "libcusolver")
_ELF_NAMES = {"x86_64": "x64", "aarch64": "AArch64", "arm64": "AArch64"}


def compare(report: WheelReport, machine: Machine) -> list[Finding]:
    """Every problem of a wheel on a machine, worst first; of another package's wheel, whether pip would install it."""
    if not report.is_deepspeed:
        return _sorted([*_about(report), *_python(report, machine)])
    return _sorted(
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


def compare_with_gpus(report: WheelReport, gpus: Sequence[Gpu]) -> list[Finding]:
    """Every problem of a wheel on these GPUs, when nothing else is known of their machines."""
    if not report.is_deepspeed:
        return list(_about(report))
    unsuited = _no_cuda_wheel(report, "") if gpus and report.accelerator == "cpu" else []
    return _sorted([*_about(report), *_gpu_code(report, gpus, where=""), *unsuited])


def _sorted(found: Iterable[Finding]) -> list[Finding]:
    order: dict[Level, int] = {"error": 0, "warning": 1, "info": 2}
    return sorted(found, key=lambda each: order[each.level])


def _error(code: str, message: str, fix: str, where: str = "") -> Finding:
    return Finding(level="error", code=code, message=message, fix=fix, where=where)


def _names(libraries: Iterable[Library]) -> str:
    return ", ".join(library.op or library.path for library in libraries)


def _about(report: WheelReport) -> Iterator[Finding]:
    """Problems of the wheel on any machine."""
    if not report.is_deepspeed:
        message = Message(
            "is {name}, not DeepSpeed: its libraries are listed, and none is compared or run", name=report.name
        )
        yield Finding(level="info", code="not_deepspeed", message=message)
        return
    gpu_ops = {op.name for op in all_ops() if op.code == "cuda"}
    there = {library.op for library in report.libraries}
    lost = [name for name in report.installed_ops if name not in there]
    if lost:
        yield _error(
            "op_missing", Message("{ops}: promised by the wheel, but not in it", ops=", ".join(lost)), _REBUILD
        )
    empty = [each for each in report.libraries if each.op in gpu_ops and not (each.sass or each.ptx)]
    if empty and report.accelerator == "cuda":
        # Without a GPU and without DS_ACCELERATOR=cuda DeepSpeed's build takes CPU variants and says nothing.
        message = Message(
            "{ops}: no GPU code at all (code for the just-in-time linker only)"
            if any(each.lto for each in empty)
            else "{ops}: no GPU code at all",
            ops=_names(empty),
        )
        yield _error("gpu_code_missing", message, _REBUILD)
    if not report.libraries:
        message = Message("contains no compiled operation: each will be compiled when it is first used")
        yield Finding(level="warning", code="wheel_without_ops", message=message, fix=_REBUILD)


def _python(report: WheelReport, machine: Machine) -> Iterator[Finding]:
    """Whether pip would install it there: by the tags of its file name (PEP 425, PEP 600)."""
    wheel = parse_tag(f"{report.python}-{report.abi}-{report.platform}")
    accepted = machine.tags()
    if wheel & accepted:
        return
    pairs = {(tag.interpreter, tag.abi) for tag in accepted}
    if not any((tag.interpreter, tag.abi) in pairs for tag in wheel):
        tag = report.python
        wanted = f"{tag[2]}.{tag[3:]}" if tag.startswith("cp") and tag[2:].isdigit() else tag
        yield _error(
            "python_tag",
            Message(
                "is for Python {wanted} (ABI {abi}), here is {version}",
                wanted=wanted,
                abi=report.abi,
                version=machine.python_version,
            ),
            Message("install it into an environment with that Python, or build it with this one"),
            machine.node,
        )
    if not any(tag.platform in {other.platform for other in accepted} for tag in wheel):
        yield _error(
            "platform_tag",
            Message(
                "is for {platform}, this machine is {machine} with glibc {glibc}"
                if machine.glibc
                else "is for {platform}, this machine is {machine}",
                platform=report.platform,
                machine=machine.machine,
                glibc=machine.glibc,
            ),
            Message("build it on such a machine, or on the oldest system it must run on"),
            machine.node,
        )


def _torch(report: WheelReport, machine: Machine) -> Iterator[Finding]:
    if report.torch is None or not report.libraries:
        return
    install = f"pip install 'torch=={report.torch}.*'"
    if machine.torch is None:
        message = Message("torch is not installed; the wheel needs torch {torch}", torch=report.torch)
        yield Finding(level="warning", code="torch_missing", message=message, fix=install, where=machine.node)
        return
    if minor_release(machine.torch) != report.torch:
        # deepspeed/ops/op_builder/builder.py, validate_torch_version: every operation raises RuntimeError.
        yield _error(
            "torch_version",
            Message(
                "was built with torch {built}, here is {version}: DeepSpeed refuses every operation in it",
                built=report.torch,
                version=machine.torch,
            ),
            Message("{install}, or build the wheel with this torch", install=install),
            machine.node,
        )
    elif report.cuda and machine.torch_cuda and minor_release(machine.torch_cuda) != report.cuda:
        yield _error(
            "torch_cuda",
            Message(
                "was built for CUDA {cuda}, here torch has CUDA {version}: DeepSpeed refuses its CUDA operations",
                cuda=report.cuda,
                version=machine.torch_cuda,
            ),
            _REBUILD,
            machine.node,
        )
    elif report.accelerator == "cuda" and machine.torch_cuda is None:
        yield _error(
            "torch_cuda",
            Message(
                "was built for CUDA {cuda}, but torch {torch} here is a CPU build",
                cuda=report.cuda,
                torch=machine.torch,
            ),
            Message("install the CUDA build of torch {torch}", torch=report.torch),
            machine.node,
        )
    yield from _cxx11(report, machine)


def _cxx11(report: WheelReport, machine: Machine) -> Iterator[Finding]:
    other = [each for each in report.libraries if each.cxx11_abi not in (None, machine.cxx11_abi)]
    if other and machine.cxx11_abi is not None:
        message = Message(
            "{ops}: compiled for the old C++ ABI, torch here has the new one: loading ends in an undefined symbol"
            if machine.cxx11_abi
            else "{ops}: compiled for the new C++ ABI, torch here has the old one: loading ends in an undefined symbol",
            ops=_names(other),
        )
        yield _error("cxx11_abi", message, _REBUILD, machine.node)


# By what `service` gives: the finding for the libraries that a GPU cannot run as they are.
_SERVED: dict[Service, tuple[Level, str, Message]] = {
    "none": ("error", "arch_missing", Message("{ops}: no {sm} code, and no PTX to fall back on{gpu}")),
    "ptx": (
        "warning",
        "arch_ptx",
        Message("{ops}: no {sm} code, only PTX, which the driver compiles at the first use{gpu}"),
    ),
    "tegra": (
        "warning",
        "arch_tegra",
        Message("{ops}: no {sm} code, and NVIDIA does not promise that other code runs on this chip"),
    ),
}


def _gpu_code(report: WheelReport, gpus: Sequence[Gpu], where: str) -> Iterator[Finding]:
    with_code = [each for each in report.libraries if each.sass or each.ptx]
    for gpu in {gpu.capability: gpu for gpu in gpus}.values():
        for kind, (level, code, text) in _SERVED.items():
            some = [each for each in with_code if service(each.sass, each.ptx, gpu.capability) == kind]
            if some:
                name = "" if gpu.name == sm(gpu.capability) else f" ({gpu.name})"
                message = Message(text.template, ops=_names(some), sm=sm(gpu.capability), gpu=name)
                yield Finding(level=level, code=code, message=message, fix=_add(gpu), where=where)


def _add(gpu: Gpu) -> str:
    return Message("add {arch} to --arch of dsrun build-wheel", arch="{}.{}".format(*gpu.capability))


def _driver(report: WheelReport, machine: Machine) -> Iterator[Finding]:
    if machine.driver_cuda is None:
        return
    known = version_key(machine.driver_cuda)
    update = Message("update the NVIDIA driver, or build the wheel with an older CUDA")
    if report.cuda and version_key(report.cuda)[0] > known[0]:
        # Within a major version every driver of it will do (CUDA Compatibility, "Minor Version Compatibility").
        message = Message(
            "needs CUDA {cuda}, the driver {driver} knows CUDA {known}",
            cuda=report.cuda,
            driver=machine.driver or "",
            known=machine.driver_cuda,
        )
        yield _error("driver_old", message, update, machine.node)
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
            message = Message(
                "{ops}: {sm} could only use its PTX, which needs a driver for CUDA {newest}; this one knows CUDA "
                "{known}",
                ops=_names(stuck),
                sm=sm(gpu.capability),
                newest=cuda_of_isa(newest),
                known=machine.driver_cuda,
            )
            yield _error(
                "driver_ptx", message, Message("{update}, or {add}", update=update, add=_add(gpu)), machine.node
            )


def _accelerator(report: WheelReport, machine: Machine) -> Iterator[Finding]:
    """DeepSpeed uses a compiled operation only under the accelerator it was built for (OpBuilder.load)."""
    if report.accelerator == "cpu" and machine.gpus and machine.torch_cuda:
        yield from _no_cuda_wheel(report, machine.node)
    if report.accelerator == "cuda" and not machine.gpus and machine.torch_cuda:
        message = Message("no GPU is visible here: its operations can be loaded, but no kernel can run")
        yield Finding(level="info", code="no_gpu", message=message, where=machine.node)


def _no_cuda_wheel(report: WheelReport, where: str) -> list[Finding]:
    message = Message("was built for the CPU: on a machine with GPUs DeepSpeed uses none of its operations")
    return [_error("accelerator", message, Message("build it with --arch and the GPUs' names"), where)]


def _system(report: WheelReport, machine: Machine) -> Iterator[Finding]:
    foreign = _ELF_NAMES.get(machine.machine)
    other = [each for each in report.libraries if each.machine and foreign and each.machine != foreign]
    if other:
        message = Message(
            "{ops}: compiled for {compiled}, this machine is {machine}",
            ops=_names(other),
            compiled=other[0].machine,
            machine=machine.machine,
        )
        yield _error("platform_code", message, Message("build it on such a machine"), machine.node)
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
            ops=_names(over),
            wanted=newest,
            have=have,
        )
        yield _error(what, message, Message("build it on the oldest system it must run on"), machine.node)


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
            ops=_names(over),
            level=level,
            lacked=", ".join(lacked),
        )
        yield _error("cpu_level", message, Message("build it with --cpu x86-64-v3 or lower"), machine.node)
    unknown = [each for each in report.libraries if each.cpu_level is None and each.machine == "x64"]
    if unknown:
        message = Message(
            "{ops}: cannot tell which processors it is for, as objdump is not installed", ops=_names(unknown)
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
        message = Message("{ops}: needs {name}, which is not on this machine", ops=_names(users), name=name)
        yield _error("library_missing", message, fix, machine.node)


def _torch_suits(report: WheelReport, machine: Machine) -> bool:
    """Whether torch here is the wheel's; if not, that is the finding, and not each library of its own."""
    if machine.torch is None or (report.torch and minor_release(machine.torch) != report.torch):
        return False
    return not (report.accelerator == "cuda" and minor_release(machine.torch_cuda or "") != report.cuda)
