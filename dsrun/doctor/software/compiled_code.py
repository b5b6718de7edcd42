"""For which GPUs and processors the installed libraries hold code, and which operations a job compiles at its start."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from dsrun.doctor.job.settings import ops_of
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.errors import UsageError
from dsrun.runs.records import write_json_atomic
from dsrun.system.files import read_object
from dsrun.system.variables import cache_root
from dsrun.wheel.platform.ops import all_ops
from dsrun.wheel.verify.contents import assignments, op_of, read_library
from dsrun.wheel.verify.fatbin import ElfSection, FatbinError, architectures, read_fatbin

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

    Without a job, none: nothing is known to be needed.
    """
    missing = [name for name in ops_of(target) if name not in installed_ops(machine)]
    if not cuda:
        return missing
    with_cuda = {op.name for op in all_ops() if op.code != "host" and op.until is None and "cuda" in op.accelerators}
    return [name for name in missing if name in with_cuda]
