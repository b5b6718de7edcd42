"""What a wheel holds: its operations, the processors and GPUs they are for, and what they need around them.

Nothing of the wheel is executed, and neither CUDA nor torch is needed.
"""

from __future__ import annotations

import ast
import hashlib
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from dsrun.system.host import cores
from dsrun.wheel.inspect.archive import Archive, open_wheel
from dsrun.wheel.inspect.elf import read_binary, version_key
from dsrun.wheel.inspect.fatbin import architectures

_LIBRARY = re.compile(r".+\.so(?:\.\d+)*")
# Written by DeepSpeed's setup.py; deepspeed/git_version_info.py reads it when an operation is loaded.
_BUILT = "deepspeed/git_version_info_installed.py"
_NO_CUDA = "0.0"
_MAX_THREADS = 8


@dataclass(frozen=True, kw_only=True)
class Library:
    """One compiled file of the wheel.

    `sass` and `ptx` are compute capabilities with nvcc's suffix, ascending ("8.0", "9.0a"); `lto` those that only
    the just-in-time linker could use. `ptx_isa` is the highest PTX ISA ("9.0"). `size` in bytes. For the others see
    dsrun.wheel.inspect.elf.Binary.
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
    asks_cpu: bool = False


@dataclass(frozen=True, kw_only=True)
class WheelReport:
    """A wheel read from outside.

    `torch` ("2.13"), `cuda` ("13.0"), `accelerator` ("cuda", "cpu") and `installed_ops` are what DeepSpeed's build
    noted; None and () in a wheel that is not DeepSpeed's or was not built with operations.
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
    """Read the wheel at `path`.

    Raises UsageError for a file that is not a wheel, truncated, damaged or malicious (`dsrun.wheel.inspect.archive`).
    """
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
        sha256=file_digest(archive.path),
        size=archive.path.stat().st_size,
        name=archive.name.name,
        version=archive.name.version,
        local=archive.name.local,
        python=archive.name.python,
        abi=archive.name.abi,
        platform=archive.name.platform,
        torch=str(torch["version"]) if "version" in torch else None,
        cuda=None if cuda == _NO_CUDA else cuda,
        accelerator=str(built["accelerator_name"]) if built.get("accelerator_name") else None,
        installed_ops=tuple(str(name) for name, there in ops.items() if there),
        libraries=_libraries(archive),
    )


def file_digest(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _built(archive: Archive) -> dict[str, Any]:
    """The assignments in what DeepSpeed's build noted, read as text: a wheel to be judged is not executed."""
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
            return tuple(pool.map(_library, files, names))


def _library(file: Path, name: str) -> Library:
    binary = read_binary(file, name)
    isa = [entry.version for entry in binary.code if entry.kind == "ptx"]
    return Library(
        path=name,
        size=file.stat().st_size,
        op=op_of(name),
        sass=architectures(binary.code, "sass"),
        ptx=architectures(binary.code, "ptx"),
        lto=architectures(binary.code, "lto"),
        ptx_isa=max(isa, key=version_key, default=None),
        needed=binary.needed,
        glibc=binary.glibc,
        glibcxx=binary.glibcxx,
        cpu_level=binary.cpu_level,
        cxx11_abi=binary.cxx11_abi,
        machine=binary.machine,
        asks_cpu=binary.asks_cpu,
    )


def op_of(path: str) -> str | None:
    """The DeepSpeed operation a library of its wheel is; None for a library of another package.

    The builders' absolute_name() ends in `<name>_op` or `<name>`, once in `kernels<name>` (a missing dot upstream).
    """
    if not path.startswith("deepspeed/"):
        return None
    return PurePosixPath(path).name.partition(".")[0].removesuffix("_op").removeprefix("kernels")
