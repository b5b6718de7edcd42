"""torch against the driver and the GPUs, and the operations of the installed DeepSpeed against the GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dsrun.doctor.check import Check, failure, fine, warning
from dsrun.doctor.gpu.presence import DISPLAY, devices
from dsrun.doctor.machine import Machine, Target
from dsrun.doctor.software.compiled_code import compiled_ops, torch_code
from dsrun.findings.finding import Finding
from dsrun.messages import Message
from dsrun.system.gpus import Gpu
from dsrun.wheel.platform.arch import Capability, capability, minor_release
from dsrun.wheel.platform.gpus import serving
from dsrun.wheel.platform.toolchain import TorchFacts
from dsrun.wheel.verify.fatbin import service, sm

# PyTorch's own package indexes, one for each CUDA, oldest first.
_INDEXES = ("cu118", "cu121", "cu124", "cu126", "cu128", "cu129", "cu130")


def look_at_driver(machine: Machine, target: Target) -> Iterator[Finding]:
    """torch can use a driver of its CUDA's major version, or above (NVIDIA, "Minor Version Compatibility")."""
    torch, driver = machine.packages.torch, machine.driver
    if torch is None:
        yield _no_torch(machine, needed=target.recipe is not None and target.runs_on(machine))
    elif driver is None:
        if not _has_nvidia_gpu(machine):
            yield fine(
                "torch_driver",
                Message(
                    "torch {version}, no NVIDIA GPU here: training would run on the CPU"
                    if target.runs_on(machine)
                    else "torch {version}, no NVIDIA GPU here: the job's nodes may have some",
                    version=torch.version,
                ),
            )
    elif torch.cuda is None:
        yield failure(
            "torch_driver_cpu_build",
            Message(
                "torch {version} was built for ROCm {rocm}, and this machine has an NVIDIA GPU: it would train on the "
                "CPU"
                if torch.hip
                else "torch {version} was built for CPUs only, and this machine has an NVIDIA GPU: it would train on "
                "the CPU",
                version=torch.version,
                rocm=torch.hip,
            ),
            _from_index(driver.cuda),
        )
    elif driver.cuda is not None:
        ours = minor_release(torch.cuda)
        if capability(ours)[0] > capability(driver.cuda)[0]:
            yield failure(
                "torch_driver_old",
                Message(
                    "torch {version} needs a driver for CUDA {needed}, and driver {driver} is for CUDA {cuda}: "
                    "torch.cuda.is_available() is False",
                    version=torch.version,
                    needed=ours,
                    driver=driver.version,
                    cuda=driver.cuda,
                ),
                Message("update the driver, or {install}", install=_from_index(driver.cuda)),
            )
        elif capability(ours) > capability(driver.cuda):
            yield warning(
                "torch_driver_minor",
                Message(
                    "torch {version} (CUDA {built}) runs with driver {driver} (CUDA {cuda}), but kernels that "
                    "it must compile fail, as those of torch.compile and Triton",
                    version=torch.version,
                    built=ours,
                    driver=driver.version,
                    cuda=driver.cuda,
                ),
                Message("update the driver"),
            )
        else:
            seen = _counted(machine.gpus)
            yield fine(
                "torch_driver",
                Message(
                    "torch {version}, driver {driver} (CUDA {cuda}), {seen}",
                    version=torch.version,
                    driver=driver.version,
                    cuda=driver.cuda,
                    seen=seen,
                ),
            )


def _no_torch(machine: Machine, *, needed: bool) -> Finding:
    if machine.packages.folder("torch"):
        message = Message("torch is installed, but its version.py says no version")
        return failure("torch_driver_broken", message, "pip install --force-reinstall torch")
    message = Message("torch is not installed for this Python: nothing can train here")
    tell = failure if needed else warning
    return tell(
        "torch_driver_missing", message, Message("pip install 'dsrun[train]', or call dsrun of the right environment")
    )


def _has_nvidia_gpu(machine: Machine) -> bool:
    """Whether there is a GPU whose driver does not answer, which the check of the driver reports."""
    loaded = machine.path("/proc/driver/nvidia/version").exists()
    return loaded or any(each.kind.startswith(DISPLAY) for each in devices(machine))


def _counted(gpus: list[Gpu]) -> str:
    if not gpus:
        return Message("no GPU visible")
    names = sorted({gpu.name for gpu in gpus})
    if len(names) == 1:
        return f"{len(gpus)} × {names[0]}"
    return Message("{count} GPUs ({names})", count=len(gpus), names=", ".join(names))


def _from_index(cuda: str | None) -> str:
    """Which torch to install: of the newest index whose CUDA has the major version that the driver knows, or below."""
    major = int((cuda or "13.0").split(".", maxsplit=1)[0])
    fitting = [name for name in _INDEXES if int(name[2:4]) <= major]
    name = (fitting or _INDEXES[:1])[-1]
    return Message("install torch from PyTorch's index {name}: its Get Started page has the command", name=name)


DRIVER = Check(
    "torch_driver",
    "torch and driver",
    look_at_driver,
    finds="torch that needs a newer driver, that is for CPUs only beside GPUs, or that is missing",
)


def look_at_gpu_code(machine: Machine, _: Target) -> Iterator[Finding]:
    """What ends in "no kernel image is available for execution on the device"."""
    torch = machine.packages.torch
    gpus = {gpu.capability: gpu for gpu in machine.gpus}
    if torch is None or torch.cuda is None or not gpus:
        return
    found = [*_torch_code(torch, gpus), *_op_code(machine, gpus)]
    yield from found
    if not found:
        yield fine(
            "gpu_code",
            Message("torch has code for {architectures}", architectures=", ".join(sm(each) for each in sorted(gpus))),
        )


def _torch_code(torch: TorchFacts, gpus: Mapping[Capability, Gpu]) -> Iterator[Finding]:
    code = torch_code(torch.path)
    for wanted, gpu in gpus.items() if code else ():
        how = service(code.sass, code.ptx, wanted) if code else "sass"
        if how == "ptx":
            yield warning(
                "gpu_code_ptx",
                Message(
                    "torch {version} has no code for {name} ({wanted}), only PTX, which the driver compiles at "
                    "the first use, for minutes",
                    version=torch.version,
                    name=gpu.name,
                    wanted=sm(wanted),
                ),
                _suiting_torch(wanted),
            )
        if how == "none":
            yield failure(
                "gpu_code_torch",
                Message(
                    "torch {version} has no code for {name} ({wanted}): 'no kernel image is available for "
                    "execution on the device'",
                    version=torch.version,
                    name=gpu.name,
                    wanted=sm(wanted),
                ),
                _suiting_torch(wanted),
            )


def _suiting_torch(wanted: Capability) -> str:
    rows = serving(wanted)
    if not rows:
        return Message("no torch on PyPI has code for it: use another GPU, or NVIDIA's own build of torch")
    first, last = rows[0].release, rows[-1].release
    if first == last:
        return f"pip install 'torch=={last}.*'"
    return Message("pip install 'torch=={last}.*'; {first} to {last} have code for it", first=first, last=last)


def _op_code(machine: Machine, gpus: Mapping[Capability, Gpu]) -> Iterator[Finding]:
    folder = machine.packages.folder("deepspeed")
    for op, code in compiled_ops(folder) if folder else ():
        for wanted, gpu in gpus.items():
            if (code.sass or code.ptx) and service(code.sass, code.ptx, wanted) == "none":
                yield failure(
                    "gpu_code_op",
                    Message(
                        "DeepSpeed's compiled {op} has code for {architectures}, none for {name} ({wanted})",
                        op=op,
                        architectures=", ".join(code.sass or code.ptx),
                        name=gpu.name,
                        wanted=sm(wanted),
                    ),
                    'pip install --force-reinstall "$(dsrun build-wheel --arch auto)"',
                )


GPU_CODE = Check(
    "gpu_code",
    "code for these GPUs",
    look_at_gpu_code,
    needs="needs a GPU, and torch for CUDA",
    finds="a GPU that torch or DeepSpeed's compiled operations contain no code for, read from their libraries",
)
