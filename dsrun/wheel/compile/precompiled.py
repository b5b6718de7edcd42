"""Compiles with torch's headers precompiled: `python -I -S precompiled.py FOLDER COMPILER ARGUMENT…` for gcc.

Two thirds of the time of a file of DeepSpeed is torch/extension.h (22 of 32 CPU seconds with gcc 12 and torch 2.13).
It is compiled once for each set of flags, and the objects are byte for byte those that gcc writes without: where flags
or macros do not fit, gcc reads the header itself (its manual, Precompiled Headers). The standard library only."""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

HEADER = "torch/extension.h"
# It takes gcc as long as it saves in two or three files, and 0.8 GB of the disk for each set of flags.
_FROM_PROCESSES = 4
_FREE_BYTES = 8 << 30
_SOURCES = (".cpp", ".cc", ".cxx")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.MULTILINE)
_TAKES_NEXT = ("-o", "-MF", "-MT", "-MQ")
# Not of the header: where the object goes, its dependencies, and the module's own name.
_OF_ONE_FILE = ("-c", "-MMD", "-MD", "-MP")
_MODULE_NAME = "-DTORCH_EXTENSION_NAME="


def launcher(folder: Path, kind: str, *, processes: int) -> list[str]:
    """What to put in front of a compiler of this kind ("gcc"), for a build of so many processes: this module, with
    `folder` for the headers, which shares its parent with the source trees; [] where it would not pay."""
    if kind != "gcc" or processes < _FROM_PROCESSES or shutil.disk_usage(folder.parent).free < _FREE_BYTES:
        return []
    return [sys.executable, "-I", "-S", __file__, str(folder)]


def main(folder: Path, command: Sequence[str]) -> None:
    """Become the compiler, with the precompiled header in `folder` if the command can use one."""
    header = precompiled(folder, command)
    os.execv(command[0], [*command, *(["-include", str(header)] if header else [])])


def precompiled(folder: Path, command: Sequence[str]) -> Path | None:
    """The header whose precompiled form lies beside it; None while another process compiles that, for a command that
    compiles no C++ file, and for a file without torch/extension.h."""
    source = next((Path(each) for each in command[1:] if each.endswith(_SOURCES)), None)
    folders = [Path(argument[2:]) for argument in command if argument.startswith("-I") and len(argument) > 2]
    if source is None or "-c" not in command or not includes_torch(source, folders):
        return None
    flags = list(shared_flags(command, source, folder.parent))
    place = folder / hashlib.sha256("\0".join(flags).encode()).hexdigest()[:16]
    header = place / "torch.h"
    ready = header.with_suffix(".h.gch")
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        try:
            if not ready.exists():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None  # To wait would take as long as to read the header.
        if not ready.exists() and not (place / "failed").exists():
            header.write_text(f"#include <{HEADER}>\n", encoding="utf-8")
            partial = place / "partial"
            argv = [command[0], *flags, "-x", "c++-header", str(header), "-o", str(partial)]
            if subprocess.run(argv, capture_output=True, check=False).returncode == 0:
                partial.rename(ready)
            else:
                partial.unlink(missing_ok=True)
                (place / "failed").touch()  # e.g. for want of room: the build goes on without
    return header if ready.exists() else None


def includes_torch(source: Path, folders: Sequence[Path]) -> bool:
    """Whether `source`, or a header of DeepSpeed's that it includes by a name in quotes, includes torch/extension.h."""
    seen: set[Path] = set()
    left = [source]
    while left:
        file = left.pop()
        if file in seen or not file.is_file():
            continue
        seen.add(file)
        for quoted, angled in _INCLUDE.findall(file.read_text(encoding="utf-8", errors="replace")):
            if HEADER in (quoted, angled):
                return True
            if quoted:
                left += [place / quoted for place in (file.parent, *folders)]
    return False


def shared_flags(command: Sequence[str], source: Path, build: Path) -> Iterator[str]:
    """The arguments that the header has to be compiled with: all but those of this one file and the include folders
    of its source tree below `build`."""
    rest = iter(command[1:])
    for argument in rest:
        if argument in _TAKES_NEXT:
            next(rest, None)
        elif argument.startswith("-I") and (
            not Path(argument[2:]).is_absolute() or build in Path(argument[2:]).parents
        ):
            continue
        elif argument not in (*_OF_ONE_FILE, str(source)) and not argument.startswith(_MODULE_NAME):
            yield argument


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
