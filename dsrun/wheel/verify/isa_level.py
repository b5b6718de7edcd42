"""Which x86-64 processors can run a library: from its instructions, or from what its compiler noted.

The levels are those of the x86-64 psABI (section "Micro-Architecture Levels"): v2 up to SSE4.2, v3 AVX2 and FMA,
v4 AVX-512 F, BW, CD, DQ and VL. What goes beyond v4 is named as /proc/cpuinfo names it: "x86-64-v4+avx512_bf16"."""

import re
import shutil
import subprocess
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from elftools.elf.elffile import ELFFile

from dsrun.datafiles import toml_beside
from dsrun.errors import ToolError
from dsrun.wheel.platform.cpu import X86_LEVELS

LEVELS = ("x86-64", *(name for name, _ in X86_LEVELS))

_TABLE = toml_beside(__file__)
_V4, _V3, _V2, _F16C = (re.compile(_TABLE[name].encode()) for name in ("v4", "v3", "v2", "f16c"))
_BEYOND = "|".join(f"(?P<{name}>{text})" for name, text in _TABLE["beyond"].items())
_MNEMONICS = re.compile(f"\t(?:{_BEYOND})[ \n]".encode())
_SIGNS = ((3, _V4), (2, _V3), (1, _V2))
_MARCH = {name: LEVELS.index(level) for level, names in _TABLE["march"].items() for name in (level, *names.split())}
_FLAGS = {"-msse4.2": 1, "-mavx": 2, "-mavx2": 2, "-mavx512f": 3}


def level_of_code(blocks: Iterable[bytes]) -> str:
    """The lowest level that has every instruction of a disassembly (AT&T syntax, whole lines a block).

    Code that tests the processor before it runs counts like all other: nothing here can tell."""
    level, beyond = 0, set[str]()
    for block in blocks:
        level = next((number for number, sign in _SIGNS if number > level and sign.search(block)), level)
        beyond |= {str(found.lastgroup) for found in _MNEMONICS.finditer(block) if not _F16C.match(found[0].strip())}
    return "+".join((LEVELS[level], *sorted(beyond)))


def level_of_flags(flags: str) -> str | None:
    """The level of GCC's flags as it notes them in debug information; None when they imply none.

    The name in -march is not enough: on a processor newer than itself GCC writes an older name for "native" and
    adds what that one lacks ("-march=znver3 … -mavx512f")."""
    arguments = flags.split()
    levels = [_MARCH.get(word.removeprefix("-march=")) for word in arguments if word.startswith("-march=")]
    levels += [number for flag, number in _FLAGS.items() if flag in arguments]
    known = [level for level in levels if level is not None]
    return LEVELS[max(known)] if known else None


def highest(levels: Iterable[str | None]) -> str | None:
    """The highest of several levels; None when none is known."""
    known = [level for level in levels if level]
    return max(known, key=split_level, default=None)


def lacking(level: str, flags: Collection[str]) -> tuple[str, ...]:
    """What a processor with these flags of /proc/cpuinfo lacks for a level: ("avx2", "bmi1", …); () when nothing."""
    number, beyond = split_level(level)
    needed = ["sse2", *(flag for _, names in X86_LEVELS[:number] for flag in sorted(names))]
    return tuple(flag for flag in (*needed, *sorted(beyond)) if flag not in flags)


def split_level(level: str) -> tuple[int, frozenset[str]]:
    """A level's place in LEVELS and what it needs beyond: "x86-64-v4+avx512_bf16" -> (3, {"avx512_bf16"})."""
    base, *beyond = level.split("+")
    return LEVELS.index(base), frozenset(beyond)


_CHUNK = 4 << 20


def disassembly(objdump: str, library: Path) -> Iterator[bytes]:
    """The executable sections of `library` in AT&T syntax, in blocks that end at a line's end.

    Raises ToolError when objdump cannot read it."""
    argv = [objdump, "--disassemble", "--no-show-raw-insn", "--wide", str(library)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            while lines := process.stdout.readlines(_CHUNK):
                yield b"".join(lines)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise ToolError(f"{objdump} failed on {library.name} with exit code {process.returncode}")


_MOST_TEXT = 256 << 20  # bytes of code; above this disassembling takes minutes and is left out
_PRODUCER = re.compile(rb"GNU (?:C|GIMPLE)[^\0]*")


def cpu_level(elf: ELFFile, path: Path) -> str | None:
    """From the instructions where objdump is installed, else from the flags that the compiler noted.

    The note is second best: DeepSpeed's shm_comm switches AVX-512 on for single functions whatever -march says,
    and a library compiled for a new processor need not use what it has."""
    if elf.get_machine_arch() != "x64":
        return None
    text = elf.get_section_by_name(".text")
    objdump = shutil.which("objdump")
    if objdump and text is not None and text["sh_size"] <= _MOST_TEXT:
        return level_of_code(disassembly(objdump, path))
    # The compiler's name and flags are in the debug information, which `strip` removes.
    strings = elf.get_section_by_name(".debug_str")
    noted = {text.decode("latin-1") for text in _PRODUCER.findall(strings.data() if strings else b"")}
    return highest(map(level_of_flags, noted))
