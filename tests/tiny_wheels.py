"""Small wheels that tests make themselves: real zip archives with real compiled libraries, well made or spoilt."""

from __future__ import annotations

import base64
import hashlib
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"
TAG = f"{PYTHON}-{PYTHON}-linux_x86_64"
VERSION = "0.19.8+cputorch2.13"

FLAG_64BIT_LINUX = 0x11
LZ4, ZSTD, EXACT, FAMILY = 0x2000, 0x8000, 0x100000, 0x200000
PTX, SASS, LTO = 1, 2, 8

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to make a library with")


def entry(
    kind: int, arch: int, flags: int = 0, *, version: tuple[int, int] = (9, 0), payload: bytes = b"code"
) -> bytes:
    """One entry of a container as nvcc writes it, with a header of 64 bytes and the payload padded to eight."""
    payload += b"\0" * (-len(payload) % 8)
    header = struct.pack(
        "<HHIQIIHHIIIQQQ", kind, 257, 64, len(payload), 0, 0, version[1], version[0], arch, 0, 0,
        FLAG_64BIT_LINUX | flags, 0, 0,
    )  # fmt: skip
    return header + payload


def container(*entries: bytes) -> bytes:
    """A container of such entries."""
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def compiled(folder: Path, source: str, *flags: str, name: str = "tiny.so", section: bytes = b"") -> Path:
    """A shared library that gcc makes of C source, with `section` for its .nv_fatbin."""
    folder.mkdir(parents=True, exist_ok=True)
    code, library = folder / "tiny.c", folder / name
    if section:
        (folder / "fatbin.bin").write_bytes(section)
        source += f'\n__asm__(".section .nv_fatbin,\\"a\\"\\n.incbin \\"{folder}/fatbin.bin\\"\\n.previous\\n");\n'
    code.write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(code), *flags], check=True)
    return library


def built_note(ops: Iterable[str], accelerator: str = "cpu", torch: str = "2.13", cuda: str = "0.0") -> str:
    """What DeepSpeed's setup.py writes into the wheel."""
    info = {
        "version": torch,
        "bf16_support": False,
        "cuda_version": cuda,
        "nccl_version": "0.0",
        "hip_version": "0.0",
    }
    installed = dict.fromkeys(ops, True) | {"evoformer_attn": False}
    return (
        f"version='{VERSION}'\ngit_hash='unknown'\ngit_branch='unknown'\ninstalled_ops={installed}\n"
        f"accelerator_name='{accelerator}'\ntorch_info={info}\n"
    )


def hashed(content: bytes) -> str:
    """A file's hash as RECORD writes it."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def make_wheel(
    folder: Path,
    files: Mapping[str, bytes | str | Path],
    *,
    name: str = "deepspeed",
    version: str = VERSION,
    tag: str = TAG,
    recorded: Mapping[str, str] | None = None,
) -> Path:
    """A wheel with these files, METADATA, WHEEL and RECORD; `recorded` replaces hashes in RECORD."""
    info = f"{name}-{version}.dist-info"
    contents = {path: content.read_bytes() if isinstance(content, Path) else content for path, content in files.items()}
    every = {path: content.encode() if isinstance(content, str) else content for path, content in contents.items()}
    every[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    every[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    hashes = {path: hashed(content) for path, content in every.items()} | dict(recorded or {})
    rows = [f"{path},{digest},{len(every.get(path, b''))}" for path, digest in hashes.items()]
    every[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in every.items():
            archive.writestr(member, content)
    return path


# DeepSpeed's way of loading operations, cut to what dsrun touches: no compiler, a table, and `load` or compile.
FAKE_PACKAGE = {
    "deepspeed/__init__.py": "from .git_version_info_installed import version as __version__\n",
    "deepspeed/ops/__init__.py": "",
    "deepspeed/ops/op_builder/__init__.py": "",
    "deepspeed/ops/op_builder/builder.py": (
        "import ctypes, pathlib\n"
        "from deepspeed.git_version_info_installed import installed_ops\n"
        "HERE = pathlib.Path(__file__).parents[1]\n"
        "class OpBuilder:\n"
        "    def __init__(self, name): self.name = name\n"
        "    def load(self):\n"
        "        if not installed_ops.get(self.name): return self.jit_load()\n"
        "        return ctypes.CDLL(str(HERE / f'{self.name}_op.so'))\n"
        "    def jit_load(self, verbose=True): raise SystemExit('compiled')\n"
    ),
    "deepspeed/ops/op_builder/all_ops.py": (
        "from .builder import OpBuilder\nALL_OPS = {name: OpBuilder(name) for name in ('tiny', 'other', 'absent')}\n"
    ),
}


def fake_deepspeed(folder: Path, libraries: Mapping[str, Path], torch: str, **note: str) -> Path:
    """A wheel whose operations `libraries` really load, through a package that stands in for DeepSpeed's."""
    files: dict[str, bytes | str | Path] = dict(FAKE_PACKAGE)
    files["deepspeed/git_version_info_installed.py"] = built_note(libraries, torch=torch, **note)
    files |= {f"deepspeed/ops/{name}_op.so": library for name, library in libraries.items()}
    return make_wheel(folder, files)
