"""What a compiled library needs from the machine that loads it, read from its ELF headers and sections."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import NoteSection

from dsrun.errors import ToolError, UsageError
from dsrun.wheel.inspect.fatbin import Entry, FatbinError, read_fatbin
from dsrun.wheel.inspect.isa_level import highest, level_of_code, level_of_flags, level_of_isa

_CHUNK = 4 << 20


def find_objdump() -> str | None:
    """The path of objdump; None where binutils is not installed."""
    return shutil.which("objdump")


def disassembly(objdump: str, library: Path) -> Iterator[bytes]:
    """The executable sections of `library` in AT&T syntax, in blocks that end at a line's end.

    Raises ToolError when objdump cannot read it.
    """
    argv = [objdump, "--disassemble", "--no-show-raw-insn", "--wide", str(library)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            rest = b""
            while block := process.stdout.read(_CHUNK):
                whole, newline, tail = block.rpartition(b"\n")
                yield rest + whole + newline
                rest = tail
            yield rest
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise ToolError(f"{objdump} failed on {library.name} with exit code {process.returncode}")


# pyelftools checks little of what it reads; a damaged file makes it fail in any of these ways.
_DAMAGED = (
    ELFError, ValueError, LookupError, AttributeError, TypeError, AssertionError, OverflowError, MemoryError, OSError,
)  # fmt: skip
_MOST_TEXT = 256 << 20  # bytes of code; above this disassembling takes minutes and is left out
_PRODUCER = re.compile(rb"GNU (?:C|GIMPLE)[^\0]*")
# Itanium C++ ABI, 5.1.8: "Ss" is std::string before GCC 5; the new one is std::__cxx11::basic_string.
_OLD_STRING = re.compile(rb"(?:RK|_ZN|_ZNK|E)Ss")
# DeepSpeed 0.19.8's shm_comm asks the processor before it takes the AVX-512 path; this is the function's name.
_ASKS = b"vector_kernel_level"


@dataclass(frozen=True, kw_only=True)
class Binary:
    """One ELF library.

    `glibc` and `glibcxx` are the highest symbol versions it asks for ("2.34", "3.4.29"). `cpu_level`: see
    dsrun.wheel.inspect.isa_level; None when nothing here can tell. `cxx11_abi`: which std::string its symbols use;
    None when they use none. `asks_cpu`: it tests the processor before it runs what `cpu_level` is about.
    """

    machine: str
    needed: tuple[str, ...]
    glibc: str | None
    glibcxx: str | None
    cxx11_abi: bool | None
    cpu_level: str | None
    code: tuple[Entry, ...]
    asks_cpu: bool


def read_binary(path: Path, shown: str) -> Binary:
    """Read the ELF file at `path`, which messages call `shown`. Raises UsageError when it is none or damaged."""
    try:
        with path.open("rb") as file:
            elf = ELFFile(file)
            versions = list(_versions(elf))
            strings = _data(elf, ".dynstr")
            return Binary(
                machine=elf.get_machine_arch(),
                needed=_needed(elf),
                glibc=_highest(versions, "GLIBC"),
                glibcxx=_highest(versions, "GLIBCXX"),
                cxx11_abi=_cxx11(strings),
                cpu_level=_cpu_level(elf, path),
                code=read_fatbin(_data(elf, ".nv_fatbin")),
                asks_cpu=_ASKS in _data(elf, ".rodata"),
            )
    except FatbinError as error:
        raise UsageError(f"{shown}: its GPU code is damaged: {error}", fix="build it again") from None
    except _DAMAGED as error:
        raise UsageError(f"{shown}: not a readable ELF library ({error})", fix="build it again") from None


def _data(elf: ELFFile, section: str) -> bytes:
    found = elf.get_section_by_name(section)
    return bytes(found.data()) if found is not None and found["sh_type"] != "SHT_NOBITS" else b""


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
    for _, versions in section.iter_versions():
        for version in versions:
            yield str(version.name)


def _highest(versions: list[str], family: str) -> str | None:
    numbers = [found[1] for each in versions if (found := re.fullmatch(rf"{family}_(\d+(?:\.\d+)*)", each))]
    return max(numbers, key=version_key, default=None)


def version_key(version: str) -> tuple[int, ...]:
    """Sort key of a dotted number: "2.34" comes after "2.4"."""
    return tuple(int(part) for part in version.split("."))


def _cxx11(strings: bytes) -> bool | None:
    if b"__cxx11" in strings or b"B5cxx11" in strings:
        return True
    return False if _OLD_STRING.search(strings) else None


def _cpu_level(elf: ELFFile, path: Path) -> str | None:
    """The instructions themselves where objdump is there, else what the compiler or assembler noted.

    The note is second best: DeepSpeed's shm_comm switches AVX-512 on for single functions whatever -march says,
    and a library compiled for a new processor need not use what it has.
    """
    if elf.get_machine_arch() != "x64":
        return None
    text = elf.get_section_by_name(".text")
    objdump = find_objdump()
    if objdump and text is not None and text["sh_size"] <= _MOST_TEXT:
        return level_of_code(disassembly(objdump, path))
    return highest([_noted_isa(elf), _noted_march(elf)])


def _noted_isa(elf: ELFFile) -> str | None:
    section = elf.get_section_by_name(".note.gnu.property")
    if not isinstance(section, NoteSection):
        return None
    properties: list[Any] = [
        each for note in section.iter_notes() if isinstance(note["n_desc"], list) for each in note["n_desc"]
    ]
    needed = [each["pr_data"] for each in properties if each["pr_type"] == "GNU_PROPERTY_X86_ISA_1_NEEDED"]
    return highest(level_of_isa(bits) for bits in needed if isinstance(bits, int))


def _noted_march(elf: ELFFile) -> str | None:
    """From the compiler's name and flags in the debug information, which `strip` removes."""
    noted = {text.decode("latin-1") for text in _PRODUCER.findall(_data(elf, ".debug_str"))}
    return highest(level_of_flags(text) for text in noted)
