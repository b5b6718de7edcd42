"""What a wheel contains: its operations, the processors and GPUs they are for, and what they need.

Nothing of the wheel is executed, and neither CUDA nor torch is needed.
"""

from __future__ import annotations

import ast
import re
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

from dsrun.errors import UsageError
from dsrun.system.host import cores
from dsrun.wheel.cache import sha256_of
from dsrun.wheel.verify.archive import Archive, open_wheel
from dsrun.wheel.verify.fatbin import FatbinError, architectures, read_fatbin
from dsrun.wheel.verify.isa_level import cpu_level, section_data

_LIBRARY = re.compile(r".+\.so(?:\.\d+)*")
# Written by DeepSpeed's setup.py; deepspeed/git_version_info.py reads it when an operation is loaded.
_BUILT = "deepspeed/git_version_info_installed.py"
_NO_CUDA = "0.0"
_MAX_THREADS = 8
# pyelftools checks little of what it reads; a damaged file makes it fail in any of these ways.
_DAMAGED = (
    ELFError, ValueError, LookupError, AttributeError, TypeError, AssertionError, OverflowError, MemoryError, OSError,
)  # fmt: skip
# Itanium C++ ABI, 5.1.8: "Ss" is std::string before GCC 5; the new one is std::__cxx11::basic_string.
_OLD_STRING = re.compile(rb"(?:RK|_ZN|_ZNK|E)Ss")
# DeepSpeed 0.19.8's shm_comm asks the processor before it takes the AVX-512 path; this is the function's name.
_CPU_CHECK = b"vector_kernel_level"


@dataclass(frozen=True, kw_only=True)
class Library:
    """One compiled file of the wheel.

    `sass` and `ptx` are compute capabilities with nvcc's suffix, ascending ("8.0", "9.0a"); `lto` those that only
    the just-in-time linker could use. `ptx_isa` is the highest PTX ISA ("9.0"). `size` in bytes.
    `glibc` and `glibcxx` are the highest symbol versions it asks for ("2.34", "3.4.29"). `cpu_level` is None when
    nothing here can tell. `cxx11_abi`: which std::string its symbols use; None when they use none. `reads_cpu`: it
    tests the processor before it runs what `cpu_level` is about.
    """

    path: str
    size: int
    op: str | None
    sass: tuple[str, ...]
    ptx: tuple[str, ...]
    needed: tuple[str, ...]
    glibc: str | None
    glibcxx: str | None
    cpu_level: str | None
    cxx11_abi: bool | None
    machine: str = ""
    lto: tuple[str, ...] = ()
    ptx_isa: str | None = None
    reads_cpu: bool = False


@dataclass(frozen=True, kw_only=True)
class WheelReport:
    """What is read from a wheel.

    `torch` ("2.13"), `cuda` ("13.0"), `accelerator` ("cuda", "cpu") and `installed_ops` are what DeepSpeed's build
    recorded; None and () in a wheel that is not DeepSpeed's or was not built with operations.
    """

    path: Path
    sha256: str
    size: int
    name: str
    version: str
    local: str
    python: str
    abi: str
    platform: str
    torch: str | None
    cuda: str | None
    accelerator: str | None
    installed_ops: tuple[str, ...]
    libraries: tuple[Library, ...]


def read_wheel(path: Path) -> WheelReport:
    """Read the wheel at `path`. Raises UsageError as `open_wheel` does, and for damaged libraries."""
    with open_wheel(path) as archive:
        return read_archive(archive)


def read_archive(archive: Archive) -> WheelReport:
    """`read_wheel` for a wheel that is open already."""
    built = _built(archive)
    torch: dict[str, Any] = built.get("torch_info") or {}
    cuda = str(torch.get("cuda_version", _NO_CUDA))
    ops: dict[str, Any] = built.get("installed_ops") or {}
    return WheelReport(
        path=archive.path,
        sha256=sha256_of(archive.path),
        size=archive.path.stat().st_size,
        **vars(archive.name),
        torch=str(torch["version"]) if "version" in torch else None,
        cuda=None if cuda == _NO_CUDA else cuda,
        accelerator=str(built["accelerator_name"]) if built.get("accelerator_name") else None,
        installed_ops=tuple(str(name) for name, there in ops.items() if there),
        libraries=_libraries(archive),
    )


def _built(archive: Archive) -> dict[str, Any]:
    """The assignments in the file that DeepSpeed's build wrote, parsed: nothing of the wheel is executed."""
    if _BUILT not in archive.names:
        return {}
    try:
        lines = ast.parse(archive.read_text(_BUILT)).body
        found = {
            line.targets[0].id: ast.literal_eval(line.value)
            for line in lines
            if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name)
        }
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    kinds = {"torch_info": dict, "installed_ops": dict, "accelerator_name": str}
    return {name: value for name, value in found.items() if isinstance(value, kinds.get(name, object))}


def _libraries(archive: Archive) -> tuple[Library, ...]:
    names = [name for name in archive.names if _LIBRARY.fullmatch(name)]
    with tempfile.TemporaryDirectory(prefix="dsrun-wheel-") as folder:
        files = []
        for number, name in enumerate(names):  # one reader at a time: an archive has one position
            files.append(Path(folder, str(number)))
            with files[-1].open("wb") as file:
                archive.copy(name, file)
        with ThreadPoolExecutor(min(_MAX_THREADS, cores())) as pool:  # objdump does most of the work
            return tuple(pool.map(read_library, files, names))


def op_of(path: str) -> str | None:
    """The DeepSpeed operation a library of its wheel is; None for a library of another package.

    The builders' absolute_name() ends in `<name>_op` or `<name>`, once in `kernels<name>` (a missing dot upstream).
    """
    if not path.startswith("deepspeed/"):
        return None
    return PurePosixPath(path).name.partition(".")[0].removesuffix("_op").removeprefix("kernels")


def read_library(file: Path, name: str) -> Library:
    """Read the ELF file `file`, which is `name` in its wheel. Raises UsageError when it is not one or is damaged."""
    try:
        with file.open("rb") as opened:
            return _library(ELFFile(opened), file, name)
    except FatbinError as error:
        raise UsageError(f"{name}: its GPU code is damaged: {error}", fix="build it again") from None
    except _DAMAGED as error:
        raise UsageError(f"{name}: not a readable ELF library ({error})", fix="build it again") from None


def _library(elf: ELFFile, file: Path, name: str) -> Library:
    versions = list(_versions(elf))
    code = read_fatbin(section_data(elf, ".nv_fatbin"))
    return Library(
        path=name,
        size=file.stat().st_size,
        op=op_of(name),
        sass=architectures(code, "sass"),
        ptx=architectures(code, "ptx"),
        lto=architectures(code, "lto"),
        ptx_isa=max((entry.version for entry in code if entry.kind == "ptx"), key=version_key, default=None),
        needed=_needed(elf),
        glibc=_highest(versions, "GLIBC"),
        glibcxx=_highest(versions, "GLIBCXX"),
        cpu_level=cpu_level(elf, file),
        cxx11_abi=_cxx11_abi(section_data(elf, ".dynstr")),
        machine=elf.get_machine_arch(),
        reads_cpu=_CPU_CHECK in section_data(elf, ".rodata"),
    )


def _needed(elf: ELFFile) -> tuple[str, ...]:
    dynamic = elf.get_section_by_name(".dynamic")
    if not isinstance(dynamic, DynamicSection):
        return ()
    tags: Iterable[Any] = dynamic.iter_tags("DT_NEEDED")
    return tuple(str(tag.needed) for tag in tags)


def _versions(elf: ELFFile) -> Iterator[str]:
    """Every symbol version the library asks others for: "GLIBC_2.34", "GLIBCXX_3.4.29", "CXXABI_1.3"."""
    section = elf.get_section_by_name(".gnu.version_r")
    if not isinstance(section, GNUVerNeedSection):
        return
    yield from (str(version.name) for _, versions in section.iter_versions() for version in versions)


def _highest(versions: list[str], family: str) -> str | None:
    numbers = [found[1] for each in versions if (found := re.fullmatch(rf"{family}_(\d+(?:\.\d+)*)", each))]
    return max(numbers, key=version_key, default=None)


def version_key(version: str) -> tuple[int, ...]:
    """Sort key of a dotted number: "2.34" comes after "2.4"."""
    return tuple(int(part) for part in version.split("."))


def _cxx11_abi(strings: bytes) -> bool | None:
    if b"__cxx11" in strings or b"B5cxx11" in strings:
        return True
    return False if _OLD_STRING.search(strings) else None
