"""For which GPUs and processors the installed libraries hold code, which operations a job compiles at its start; and
torch and the operations of the installed DeepSpeed against driver and GPUs."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from dsrun.doctor.gpu.presence import DISPLAY, devices
from dsrun.doctor.job.settings import ops_of
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.errors import UsageError
from dsrun.findings.finding import Finding, finding_of, first_where, text_of
from dsrun.machine.gpus import LocalGpu
from dsrun.machine.torch_facts import TorchFacts
from dsrun.runs.records import write_json_atomic
from dsrun.system.files import read_object
from dsrun.system.variables import cache_root
from dsrun.wheel.platform.arch import ComputeCapability, capability, minor_release
from dsrun.wheel.platform.gpu_target import serving
from dsrun.wheel.platform.ops import all_ops
from dsrun.wheel.verify.contents import assignments, op_of, read_library
from dsrun.wheel.verify.fatbin import ElfSection, FatbinError, architectures, read_fatbin, service, sm

CACHE_NAME = "doctor-compiled-code.json"
_MOST_REMEMBERED = 200
# Two checks ask for the same libraries at the same time: the second takes what the first has found.
_one_at_a_time = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class CompiledCode:
    """The compute capabilities that a library has machine code (SASS) and PTX for ("8.0", "9.0a"), and the level of
    processors that it is for, None where nothing tells or it asks the processor first."""

    sass: tuple[str, ...]
    ptx: tuple[str, ...]
    cpu_level: str | None = None


def torch_code(folder: Path) -> CompiledCode | None:
    """The code in torch's kernels; None for a torch without, or that cannot be read."""
    library = folder / "lib" / "libtorch_cuda.so"
    return _remembered(library, _gpu_code) if library.is_file() else None


def compiled_ops(folder: Path) -> Iterator[tuple[str, CompiledCode]]:
    """Each of DeepSpeed's operations that were compiled at installation, by name."""
    for library in sorted(folder.rglob("*.so")):
        name = f"deepspeed/{library.relative_to(folder)}"
        if found := _remembered(library, partial(_op_code, name=name)):
            yield op_of(name) or library.stem, found


def _gpu_code(library: Path) -> CompiledCode:
    with library.open("rb") as opened:
        entries = read_fatbin(ElfSection.of(ELFFile(opened), ".nv_fatbin", opened))
    return CompiledCode(sass=architectures(entries, "sass"), ptx=architectures(entries, "ptx"))


def _op_code(library: Path, name: str) -> CompiledCode:
    found = read_library(library, name)
    return CompiledCode(sass=found.sass, ptx=found.ptx, cpu_level=None if found.reads_cpu else found.cpu_level)


def _remembered(library: Path, read: Callable[[Path], CompiledCode]) -> CompiledCode | None:
    """What `read` finds in the library; None where it cannot be read. A file of the same size and time is not read
    again: torch's kernels take a second, and disassembling an operation several."""
    with _one_at_a_time:
        known = read_object(cache_root() / CACHE_NAME)
        with suppress(OSError, KeyError, TypeError):
            facts = library.stat()
            key = f"{library.resolve()} {facts.st_size} {facts.st_mtime_ns}"
            if key in known:
                row = known[key]
                return CompiledCode(sass=tuple(row["sass"]), ptx=tuple(row["ptx"]), cpu_level=row["cpu_level"])
        try:
            code = read(library)
        except (OSError, ELFError, FatbinError, UsageError, ValueError):
            return None
        with suppress(OSError):  # without a cache the next call takes as long as this one
            kept = dict(list(known.items())[-_MOST_REMEMBERED:])
            cache_root().mkdir(parents=True, exist_ok=True)
            write_json_atomic(cache_root() / CACHE_NAME, kept | {key: asdict(code)})
        return code


_RECORD = "git_version_info_installed.py"


def installed_ops(machine: MachineFacts) -> frozenset[str]:
    """The operations that the installed DeepSpeed was compiled with, by the record of its build."""
    folder = machine.packages.folder("deepspeed")
    try:
        record = assignments((folder / _RECORD).read_text(encoding="utf-8")) if folder else {}
    except (OSError, UnicodeDecodeError):
        return frozenset()
    return frozenset(str(name) for name, there in record.get("installed_ops", {}).items() if there)


def compiled_at_start(machine: MachineFacts, target: DoctorTarget, *, cuda: bool) -> list[str]:
    """The operations that the job compiles at its start; with `cuda` those that nvcc or CUDA's headers are needed for.

    Without a job, none: nothing is known to be needed."""
    missing = [name for name in ops_of(target) if name not in installed_ops(machine)]
    if not cuda:
        return missing
    with_cuda = {op.name for op in all_ops() if op.code != "host" and op.until is None and "cuda" in op.accelerators}
    return [name for name in missing if name in with_cuda]


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
    found = [*_torch_code(torch, gpus), *_codes_of_ops(machine, gpus)]
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


def _codes_of_ops(machine: MachineFacts, gpus: Mapping[ComputeCapability, LocalGpu]) -> Iterator[Finding]:
    folder = machine.packages.folder("deepspeed")
    for op, code in compiled_ops(folder) if folder else ():
        for wanted, gpu in gpus.items():
            if (code.sass or code.ptx) and service(code.sass, code.ptx, wanted) == "none":
                architectures = ", ".join(code.sass or code.ptx)
                yield finding_of("gpu_code_op", op=op, architectures=architectures, name=gpu.name, wanted=sm(wanted))
