"""Whether a wheel fits a machine: every problem is found before anything is installed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from packaging.tags import parse_tag

from dsrun.findings.finding import Finding, Level, worst_first
from dsrun.messages import Message
from dsrun.wheel.target.arch import minor_release
from dsrun.wheel.target.ops import all_ops
from dsrun.wheel.verify.contents import WheelReport, version_key
from dsrun.wheel.verify.fatbin import Service, cuda_of_isa, service, sm
from dsrun.wheel.verify.machine import Gpu, Machine
from dsrun.wheel.verify.system import error, names, system_findings

_REBUILD = Message("build it with dsrun build-wheel in this environment")


def compare(report: WheelReport, machine: Machine) -> list[Finding]:
    """Every problem of a wheel on a machine, worst first; of another package's wheel, whether pip would install it."""
    if not report.is_deepspeed:
        return worst_first([*_about(report), *_python(report, machine)])
    return worst_first(
        [
            *_about(report),
            *_python(report, machine),
            *_torch(report, machine),
            *_gpu_code(report, machine.gpus, where=machine.node),
            *_driver(report, machine),
            *_accelerator(report, machine),
            *system_findings(report, machine),
        ]
    )


def compare_with_gpus(report: WheelReport, gpus: Sequence[Gpu]) -> list[Finding]:
    """Every problem of a wheel on these GPUs, when nothing else is known of their machines."""
    if not report.is_deepspeed:
        return list(_about(report))
    unsuited = _no_cuda_wheel(report, "") if gpus and report.accelerator == "cpu" else []
    return worst_first([*_about(report), *_gpu_code(report, gpus, where=""), *unsuited])


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
        yield error("op_missing", Message("{ops}: promised by the wheel, but not in it", ops=", ".join(lost)), _REBUILD)
    empty = [each for each in report.libraries if each.op in gpu_ops and not (each.sass or each.ptx)]
    if empty and report.accelerator == "cuda":
        # Without a GPU and without DS_ACCELERATOR=cuda DeepSpeed's build takes CPU variants and says nothing.
        message = Message(
            "{ops}: no GPU code at all (code for the just-in-time linker only)"
            if any(each.lto for each in empty)
            else "{ops}: no GPU code at all",
            ops=names(empty),
        )
        yield error("gpu_code_missing", message, _REBUILD)
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
        yield error(
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
        yield error(
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
        yield error(
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
        yield error(
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
        yield error(
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
            ops=names(other),
        )
        yield error("cxx11_abi", message, _REBUILD, machine.node)


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
                message = Message(text.template, ops=names(some), sm=sm(gpu.capability), gpu=name)
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
        yield error("driver_old", message, update, machine.node)
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
                ops=names(stuck),
                sm=sm(gpu.capability),
                newest=cuda_of_isa(newest),
                known=machine.driver_cuda,
            )
            yield error(
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
    return [error("accelerator", message, Message("build it with --arch and the GPUs' names"), where)]
