"""What a wheel contains: its operations, the processors and GPUs they are for, and what they need.

Nothing of the wheel is executed, and neither CUDA nor torch is needed."""

import ast
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

from dsrun.errors import UsageError
from dsrun.system.files import sha256_of
from dsrun.system.process.scratch import scratch_folder
from dsrun.wheel.platform.arch import minor_release
from dsrun.wheel.platform.ops import DEEPSPEED
from dsrun.wheel.verify.archive import PROVENANCE, WheelArchive, WheelName, open_wheel
from dsrun.wheel.verify.fatbin import ElfSection, FatbinError, architectures, read_fatbin
from dsrun.wheel.verify.isa_level import cpu_level

_LIBRARY = re.compile(r".+\.so(?:\.\d+)*")
_BUILT = "deepspeed/git_version_info_installed.py"
_LONGEST_NOTE = 64 << 10  # bytes: parsed, it takes 500 times its size
_NO_CUDA = "0.0"
# pyelftools checks little of what it reads; a damaged file makes it fail in any of these ways.
_DAMAGED = (
    ELFError, ValueError, LookupError, AttributeError, TypeError, AssertionError, OverflowError, MemoryError, OSError,
)  # fmt: skip
# Itanium C++ ABI, 5.1.8: "Ss" is std::string before GCC 5; the new one is std::__cxx11::basic_string.
_OLD_STRING = re.compile(rb"(?:RK|_ZN|_ZNK|E)Ss")
# DeepSpeed 0.19.8's shm_comm asks the processor before it takes the AVX-512 path; this is the function's name.
_CPU_CHECK = b"vector_kernel_level"


@dataclass(frozen=True, kw_only=True)
class WheelLibrary:
    """One compiled file of the wheel.

    `sass` and `ptx` are compute capabilities with nvcc's suffix, ascending ("8.0", "9.0a"); `lto` those that only
    the just-in-time linker could use. `ptx_isa` is the highest PTX ISA ("9.0"). `size` in bytes.
    `glibc` and `glibcxx` are the highest symbol versions it asks for ("2.34", "3.4.29"). `cpu_level` is None when
    nothing here can tell. `cxx11_abi`: which std::string its symbols use; None when they use none. `reads_cpu`: it
    tests the processor before it runs what `cpu_level` is about."""

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
class BuildNote:
    """What DeepSpeed's build recorded, or dsrun of another package: torch ("2.13"), CUDA ("13.0"), accelerator ("cuda",
    "cpu") and compiled operations or extension modules; None and () where nothing is recorded or was compiled."""

    torch: str | None
    cuda: str | None
    accelerator: str | None
    installed_ops: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class WheelReport(WheelName, BuildNote):
    """What is read from a wheel. `built_from` is the request that dsrun recorded, with its `key`; None in another's."""

    path: Path
    sha256: str
    size: int
    libraries: tuple[WheelLibrary, ...]
    built_from: Mapping[str, Any] | None = None

    @property
    def is_deepspeed(self) -> bool:
        return self.name == DEEPSPEED

    @property
    def is_known(self) -> bool:
        """Whether it tells what it was compiled for: a wheel of DeepSpeed, or one that dsrun built."""
        return self.is_deepspeed or bool(self.installed_ops)


def read_wheel(path: Path) -> WheelReport:
    """Read the wheel at `path`. Raises UsageError as `open_wheel` does, and for damaged libraries."""
    with open_wheel(path) as archive:
        return read_archive(archive)


def read_archive(archive: WheelArchive, *, libraries: bool = True) -> WheelReport:
    """`read_wheel` for a wheel that is open already; without its `libraries`, which are unpacked to be read."""
    return WheelReport(
        path=archive.path,
        sha256=sha256_of(archive.path),
        size=archive.path.stat().st_size,
        **vars(archive.name),
        **vars(build_note(archive)),
        libraries=_libraries(archive, built_from(archive)) if libraries else (),
        built_from=built_from(archive),
    )


def built_from(archive: WheelArchive) -> dict[str, Any] | None:
    """The request that dsrun recorded in the wheel, with its key; None for another's, or a later record's."""
    member = archive.info_file(PROVENANCE)
    with suppress(ValueError, RecursionError, AttributeError, TypeError, LookupError):
        found = json.loads(archive.read_text(member)) if member else {}
        if found.get("version") == 1:
            return {"key": str(found["key"]), **found["inputs"]}
    return None


def build_note(archive: WheelArchive) -> BuildNote:
    """The file that DeepSpeed's build wrote, parsed: nothing of the wheel is executed. For another package, what dsrun
    recorded; without that, nothing is known.

    deepspeed/git_version_info.py reads it when an operation is loaded."""
    request = built_from(archive)
    if request and "package" in request:
        return BuildNote(
            torch=minor_release(request["torch"]),
            cuda=minor_release(request["cuda"]) if request["cuda"] else None,
            accelerator=request["accelerator"],
            installed_ops=tuple(request["ops"]),
        )
    built = assignments(archive.read_text(_BUILT, _LONGEST_NOTE)) if _BUILT in archive else {}
    torch: dict[str, Any] = built.get("torch_info") or {}
    cuda = str(torch.get("cuda_version", _NO_CUDA))
    ops: dict[str, Any] = built.get("installed_ops") or {}
    return BuildNote(
        torch=str(torch["version"]) if "version" in torch else None,
        cuda=None if cuda == _NO_CUDA else cuda,
        accelerator=str(built["accelerator_name"]) if built.get("accelerator_name") else None,
        installed_ops=tuple(str(name) for name, there in ops.items() if there),
    )


def assignments(text: str) -> dict[str, Any]:
    """The literals that a Python file assigns to names; {} where it holds anything else. Nothing is executed."""
    try:
        found = {
            line.targets[0].id: ast.literal_eval(line.value)
            for line in ast.parse(text).body
            if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name)
        }
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    kinds = {"torch_info": dict, "installed_ops": dict, "accelerator_name": str}
    return {name: value for name, value in found.items() if isinstance(value, kinds.get(name, object))}


def _libraries(archive: WheelArchive, request: Mapping[str, Any] | None) -> tuple[WheelLibrary, ...]:
    found, modules = [], tuple(request["ops"]) if request and "package" in request else ()
    with scratch_folder("dsrun-wheel-") as folder:
        file = Path(folder, "library")
        for name in archive.names:
            if _LIBRARY.fullmatch(name):
                archive.extract(name, file)
                found.append(read_library(file, name, modules))
                file.unlink()
    return tuple(found)


def op_of(path: str, modules: Collection[str] = ()) -> str | None:
    """The DeepSpeed operation that a library of its wheel is, or which of a package's `modules`; None for another's.

    The builders' absolute_name() ends in `<name>_op` or `<name>`, once in `kernels<name>` (a missing dot upstream)."""
    module = path.partition(".")[0].replace("/", ".")
    if module in modules:
        return module
    if not path.startswith("deepspeed/"):
        return None
    return PurePosixPath(path).name.partition(".")[0].removesuffix("_op").removeprefix("kernels")


def read_library(file: Path, name: str, modules: Collection[str] = ()) -> WheelLibrary:
    """Read the ELF file `file`, which is `name` in a wheel with these extension `modules`.

    Raises UsageError when it is not one or is damaged."""
    try:
        with file.open("rb") as opened:
            return _library(ELFFile(opened), opened, file, name, op_of(name, modules))
    except FatbinError as error:
        raise UsageError(f"{name}: its GPU code is damaged: {error}", fix="build it again") from None
    except _DAMAGED as error:
        raise UsageError(f"{name}: not a readable ELF library ({error})", fix="build it again") from None


def _library(elf: ELFFile, opened: BinaryIO, file: Path, name: str, op: str | None) -> WheelLibrary:
    versions = list(_versions(elf))
    # Hundreds of megabytes, of which only the headers are read.
    code = read_fatbin(ElfSection.of(elf, ".nv_fatbin", opened))
    strings = ElfSection.of(elf, ".dynstr", opened)[:]
    new_strings = b"__cxx11" in strings or b"B5cxx11" in strings
    return WheelLibrary(
        path=name,
        size=file.stat().st_size,
        op=op,
        sass=architectures(code, "sass"),
        ptx=architectures(code, "ptx"),
        lto=architectures(code, "lto"),
        ptx_isa=max((entry.version for entry in code if entry.kind == "ptx"), key=version_key, default=None),
        needed=_needed(elf),
        glibc=_highest(versions, "GLIBC"),
        glibcxx=_highest(versions, "GLIBCXX"),
        # Disassembling somebody else's 500 MB takes minutes, and tells no user of DeepSpeed anything.
        cpu_level=cpu_level(elf, file) if op else None,
        cxx11_abi=new_strings if new_strings or _OLD_STRING.search(strings) else None,
        machine=elf.get_machine_arch(),
        reads_cpu=bool(op) and _CPU_CHECK in ElfSection.of(elf, ".rodata", opened)[:],
    )


def _needed(elf: ELFFile) -> tuple[str, ...]:
    dynamic = elf.get_section_by_name(".dynamic")
    if not isinstance(dynamic, DynamicSection):
        return ()
    tags: Iterable[Any] = dynamic.iter_tags("DT_NEEDED")
    return tuple(str(tag.needed) for tag in tags)


def symbol_versions(library: IO[bytes]) -> tuple[str, ...]:
    """Every symbol version that an ELF library asks others for: "GLIBC_2.34", "GLIBCXX_3.4.29", "CXXABI_1.3"."""
    return tuple(_versions(ELFFile(library)))


def _versions(elf: ELFFile) -> Iterator[str]:
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
