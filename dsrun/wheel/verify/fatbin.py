"""Which GPU code an ELF section `.nv_fatbin` holds: its containers' headers, read without any CUDA tool.

NVIDIA does not publish the format. This layout was measured on the output of nvcc 12.4 and 13.0 and on torch's
own libraries, and gave what cuobjdump gives. The section is a run of containers with zeros between them:

    container  u32 magic 0xBA55ED50, u16 version, u16 header size, u64 size of the entries that follow
    entry      +0 u16 kind, +4 u32 header size, +8 u64 payload size, +24 u16 minor and +26 u16 major version of
               what made it (for PTX: the PTX ISA), +28 u32 architecture (80, 90, 100), +40 u64 flags

A payload may be compressed, a header never is, so no decompression is needed to list the architectures."""

import os
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Literal, Self

from elftools.elf.elffile import ELFFile

from dsrun.wheel.platform.arch import ComputeCapability, tegra

CodeKind = Literal["ptx", "sass", "lto", "other"]

MAGIC = 0xBA55ED50
_CONTAINER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQ")
_KINDS: dict[int, CodeKind] = {1: "ptx", 2: "sass", 8: "lto"}
_CHUNK = 4096
_NOT_ZERO = re.compile(rb"[^\0]")
_EXACT, _FAMILY = 0x100000, 0x200000


class FatbinError(ValueError):
    """The section is not what nvcc writes."""


@dataclass(frozen=True, kw_only=True)
class FatbinEntry:
    """One piece of GPU code.

    `arch` is the compute capability with nvcc's suffix, "9.0" or "9.0a"; `version` the PTX ISA for PTX ("9.0").
    An LTO entry is an intermediate that only the just-in-time linker reads: the CUDA runtime does not run it."""

    kind: CodeKind
    arch: str
    version: str


@dataclass(frozen=True)
class ElfSection:
    """A section of an ELF file, of which only the parts that are asked for are read: `section[100:164]`.

    A memory map would do, but counts every page around what is looked at as the process's own memory."""

    file: BinaryIO
    offset: int
    size: int

    @classmethod
    def of(cls, elf: ELFFile, name: str, file: BinaryIO) -> Self:
        """The section `name` of `elf`, which `file` contains; empty where there is none."""
        found = elf.get_section_by_name(name)
        if found is None or found["sh_type"] == "SHT_NOBITS":
            return cls(file, 0, 0)
        return cls(file, found["sh_offset"], found["sh_size"])

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self.size)
        return os.pread(self.file.fileno(), max(0, stop - start), self.offset + start)


def read_fatbin(section: bytes | ElfSection) -> tuple[FatbinEntry, ...]:
    """Every entry in a `.nv_fatbin` section, in its order.

    Raises FatbinError where a container or an entry reaches past its end, or where something other than zeros lies
    between containers: a truncated or damaged library must not pass for one with less code."""
    entries: list[FatbinEntry] = []
    at = 0
    while (at := _skip_zeros(section, at, len(section))) < len(section):
        if at + _CONTAINER.size > len(section):
            raise FatbinError(f"the section ends inside a container's header, at byte {at}")
        magic, _, header, size = _CONTAINER.unpack(section[at : at + _CONTAINER.size])
        if magic != MAGIC:
            raise FatbinError(f"byte {at} is neither a container nor padding")
        end = at + header + size
        if header < _CONTAINER.size or end > len(section):
            raise FatbinError(f"the container at byte {at} reaches past the end of the section")
        entries += _entries(section, at + header, end)
        at = end
    return tuple(entries)


def _skip_zeros(section: bytes | ElfSection, at: int, end: int) -> int:
    """Where the next byte that is not zero lies; `end` when there is none before it."""
    while at < end:
        chunk = section[at : min(end, at + _CHUNK)]
        if found := _NOT_ZERO.search(chunk):
            return at + found.start()
        at += len(chunk)
    return end


def _entries(section: bytes | ElfSection, at: int, end: int) -> Iterator[FatbinEntry]:
    while at + _ENTRY.size <= end:
        kind, _, header, size, _, _, minor, major, arch, _, _, flags = _ENTRY.unpack(section[at : at + _ENTRY.size])
        if kind == 0 and header == 0:
            return
        if header < _ENTRY.size or at + header + size > end:
            raise FatbinError(f"the entry at byte {at} reaches past its container")
        yield FatbinEntry(
            kind=_KINDS.get(kind, "other"),
            arch=f"{arch // 10}.{arch % 10}{'a' if flags & _EXACT else 'f' if flags & _FAMILY else ''}",
            version=f"{major}.{minor}",
        )
        at += header + size
    if _skip_zeros(section, at, end) < end:
        raise FatbinError(f"the container ends inside an entry's header, at byte {at}")


def architectures(entries: Iterable[FatbinEntry], kind: CodeKind) -> tuple[str, ...]:
    """The architectures of all entries of one kind, ascending, each once: ("8.0", "9.0", "9.0a")."""
    return tuple(sorted({entry.arch for entry in entries if entry.kind == kind}, key=arch_order))


def arch_order(arch: str) -> tuple[int, int, str]:
    """Sort key of an architecture as `FatbinEntry` writes it: "9.0a" comes after "9.0" and before "10.0"."""
    major, _, minor = arch.partition(".")
    digits = minor.rstrip("af")
    return int(major), int(digits), minor[len(digits) :]


# "sass": runs as it is. "ptx": the driver compiles it first. "tegra": would have to cross between the desktop and
# the Tegra chips of one major version, for which NVIDIA gives no promise.
ServedBy = Literal["sass", "ptx", "tegra", "none"]

_CUDA_OF_EARLY_8 = {5: "12.5", 6: "12.7", 7: "12.8", 8: "12.9"}


def service(sass: Iterable[str], ptx: Iterable[str], gpu: ComputeCapability) -> ServedBy:
    """How a library with this code can run on a GPU; `sass` and `ptx` as in `WheelLibrary`."""
    fits = [arch for arch in sass if _binary_fits(arch, gpu)]
    if any(_same_family(arch, gpu) for arch in fits):
        return "sass"
    # PTX for X.y compiles for everything from X.y on; with the suffix "a" or "f" it is bound like a binary.
    if any(_binary_fits(arch, gpu) if arch_order(arch)[2] else arch_order(arch)[:2] <= gpu for arch in ptx):
        return "ptx"
    return "tegra" if fits else "none"


def _binary_fits(arch: str, gpu: ComputeCapability) -> bool:
    """Code for X.y runs on X.z with z >= y; with the suffix "a" on X.y alone, with "f" within its family."""
    major, minor, suffix = arch_order(arch)
    if suffix == "a":
        return (major, minor) == gpu
    return major == gpu[0] and minor <= gpu[1] and (suffix != "f" or _same_family(arch, gpu))


def _same_family(arch: str, gpu: ComputeCapability) -> bool:
    major, minor, _ = arch_order(arch)
    return (major, minor) == gpu or ((major, minor) in tegra()) == (gpu in tegra())


def cuda_of_isa(isa: str) -> str:
    """The first CUDA whose driver reads a PTX ISA version (PTX ISA manual, "Release Notes"): "9.0" -> "13.0"."""
    major, minor = (int(part) for part in isa.split("."))
    if major == 8 and minor in _CUDA_OF_EARLY_8:
        return _CUDA_OF_EARLY_8[minor]
    return f"{major + 4}.{minor}"


def sm(gpu: ComputeCapability) -> str:
    """nvcc's name of a compute capability: (9, 0) -> "sm_90"."""
    return f"sm_{gpu[0]}{gpu[1]}"
