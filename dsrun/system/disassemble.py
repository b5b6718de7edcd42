"""Asking binutils what instructions a library holds."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from dsrun.errors import ToolError

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
