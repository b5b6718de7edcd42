"""torch against the driver and the GPUs, and the operations of the installed DeepSpeed against the GPUs."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from dsrun.doctor.gpu.presence import DISPLAY, devices
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.doctor.software.compiled_code import compiled_ops, torch_code
from dsrun.findings.conditions import first_where
from dsrun.findings.finding import Finding
from dsrun.findings.texts import finding_of, text_of
from dsrun.machine.gpus import LocalGpu
from dsrun.machine.torch_facts import TorchFacts
from dsrun.wheel.platform.arch import ComputeCapability, capability, minor_release
from dsrun.wheel.platform.gpu_target import serving
from dsrun.wheel.verify.fatbin import service, sm

# PyTorch's own package indexes, one for each CUDA, oldest first.
_INDEXES = ("cu118", "cu121", "cu124", "cu126", "cu128", "cu129", "cu130")


def look_at_driver(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    here, is_there = target.runs_on(machine), bool(machine.packages.folder("torch"))
    names: dict[str, Any] = {each.__name__: each for each in (capability, minor_release)}
    names |= {"from_index": _from_index, "has_gpu": partial(_has_nvidia_gpu, machine), "is_there": is_there}
    names |= {"torch": machine.packages.torch, "driver": machine.driver, "recipe": target.recipe, "here": here}
    yield from first_where(__file__, "driver", seen=_counted(machine.gpus), **names)


def _has_nvidia_gpu(machine: MachineFacts) -> bool:
    """Whether there is a GPU whose driver does not answer, which the check of the driver reports."""
    loaded = machine.path("/proc/driver/nvidia/version").exists()
    return loaded or any(each.kind.startswith(DISPLAY) for each in devices(machine))


def _counted(gpus: list[LocalGpu]) -> str:
    names = sorted({gpu.name for gpu in gpus})
    if not names:
        return text_of("torch_driver.no_gpu")
    if len(names) == 1:
        return f"{len(gpus)} × {names[0]}"
    return text_of("torch_driver.gpus", count=len(gpus), names=", ".join(names))


def _from_index(cuda: str | None) -> str:
    """Which torch to install: of the newest index whose CUDA has the major version that the driver knows, or below."""
    major = int((cuda or "13.0").split(".", maxsplit=1)[0])
    fitting = [name for name in _INDEXES if int(name[2:4]) <= major]
    return text_of("torch_driver.install", name=(fitting or _INDEXES[:1])[-1])


def look_at_gpu_code(machine: MachineFacts, _: DoctorTarget) -> Iterator[Finding]:
    """What ends in "no kernel image is available for execution on the device"."""
    torch = machine.packages.torch
    gpus = {gpu.capability: gpu for gpu in machine.gpus}
    if torch is None or torch.cuda is None or not gpus:
        return
    found = [*_torch_code(torch, gpus), *_op_code(machine, gpus)]
    yield from found or [finding_of("gpu_code", architectures=", ".join(sm(each) for each in sorted(gpus)))]


def _torch_code(torch: TorchFacts, gpus: Mapping[ComputeCapability, LocalGpu]) -> Iterator[Finding]:
    code = torch_code(torch.path)
    for wanted, gpu in gpus.items() if code else ():
        how = service(code.sass, code.ptx, wanted) if code else "sass"
        if how != "sass":
            key = "gpu_code_ptx" if how == "ptx" else "gpu_code_torch"
            yield finding_of(key, version=torch.version, name=gpu.name, wanted=sm(wanted), fix=_suiting_torch(wanted))


def _suiting_torch(wanted: ComputeCapability) -> str:
    rows = serving(wanted)
    if not rows:
        return text_of("gpu_code_torch.none")
    first, last = rows[0].release, rows[-1].release
    if first == last:
        return f"pip install 'torch=={last}.*'"
    return text_of("gpu_code_torch.several", first=first, last=last)


def _op_code(machine: MachineFacts, gpus: Mapping[ComputeCapability, LocalGpu]) -> Iterator[Finding]:
    folder = machine.packages.folder("deepspeed")
    for op, code in compiled_ops(folder) if folder else ():
        for wanted, gpu in gpus.items():
            if (code.sass or code.ptx) and service(code.sass, code.ptx, wanted) == "none":
                architectures = ", ".join(code.sass or code.ptx)
                yield finding_of("gpu_code_op", op=op, architectures=architectures, name=gpu.name, wanted=sm(wanted))
