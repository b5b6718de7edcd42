"""The environment a build runs in: what dsrun sets, and what it keeps away from the compilers."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from packaging.version import Version

from dsrun.wheel.platform.ops import DeepspeedOp, op_table

SEARCH_PATHS = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "CCL_ROOT", "CUTLASS_PATH")
"""Where compilers and DeepSpeed look for headers and libraries. They pass, and are part of the request's key."""

FLAGS = ("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "ARCHFLAGS")
"""Flags of somebody else's build (conda sets them on activation): a wheel must not depend on them."""

_NOT_FOR_BUILDS = (*FLAGS, *["CC", "CXX", "LDSHARED", "LDCXXSHARED", "AR", "MAX_JOBS", "NVCC_CCBIN", "COMPILER_PATH"])
_PREFIXES = ("DS_", "TORCH_", "PYTORCH_", "CUDA_", "NINJA", "DISTUTILS", "SETUPTOOLS", "GCC_", "PYTHONHASHSEED")
_EPOCH = "315532800"
"""1980-01-01, the first second a zip archive can hold (APPNOTE.TXT, 4.4.6)."""


def search_paths(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, environ[name]) for name in SEARCH_PATHS if environ.get(name))


def unused_flags(environ: Mapping[str, str]) -> list[str]:
    """Names of flags set in `environ` that a build will not see."""
    return [name for name in FLAGS if environ.get(name, "").strip()]


def without_flags(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` as the compilers of a build see it: probes must not find what the build would not."""
    return {name: value for name, value in environ.items() if name not in FLAGS}


def build_environment(
    environ: Mapping[str, str],
    request: "WheelRequest",
    *,
    python: Path,
    compilers: Mapping[str, str],
    cuda_home: Path | None,
    ops: Iterable[DeepspeedOp],
    jobs: int,
    trees: Path,
) -> dict[str, str]:
    """The whole environment for compiling `ops` in a source tree below `trees` with `jobs` compilers at a time.

    `compilers`: CXX, CC and PYTORCH_NVCC, which call a compiler cache themselves. Every operation is switched
    explicitly: DeepSpeed reads 0 and unset differently when DS_BUILD_OPS is set. What is in the environment for
    somebody else's build is dropped.
    """
    wanted = {op.name for op in ops}
    kept = {
        name: value for name, value in environ.items() if name not in _NOT_FOR_BUILDS and not name.startswith(_PREFIXES)
    }
    switches = {op.variable: str(int(op.name in wanted)) for op in op_table(request.deepspeed)}
    return {
        **kept,
        **switches,
        "DS_BUILD_OPS": "0",
        "DS_ACCELERATOR": request.accelerator,
        # Without it setup.py records the commit of whatever git repository the tree lies in.
        "DS_BUILD_STRING": PART_VERSION,
        # setup.py otherwise compiles file by file: MAX_JOBS counts for ninja alone (BuildExtension in
        # torch.utils.cpp_extension).
        "DS_ENABLE_NINJA": "1",
        "MAX_JOBS": str(jobs),
        **compilers,
        # torch 2.13 would put a compiler cache from PATH in front of our wrappers too.
        "TORCH_NO_COMPILER_WRAPPER": "1",
        # Without these ccache counts the same file in another folder as another compilation.
        "CCACHE_BASEDIR": str(trees),
        "CCACHE_NOHASHDIR": "true",
        "CCACHE_COMPILERCHECK": "content",
        # Symbols go at link time: the linker's build id is computed from what it writes, and nvcc's temporary
        # names, which hold a process id, are among the symbols (GNU ld manual, --build-id and -s).
        **({} if request.symbols else {"LDFLAGS": "-Wl,-s"}),
        "SOURCE_DATE_EPOCH": _EPOCH,
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        # failure.py reads what compilers say, which gcc translates.
        "LC_ALL": "C.UTF-8",
        # The environment's own ninja first; a system's may be too old for torch.
        "PATH": f"{python.parent}:{environ.get('PATH', '/usr/bin:/bin')}",
        **_cuda(request, cuda_home),
    }


def _cuda(request: "WheelRequest", cuda_home: Path | None) -> dict[str, str]:
    if request.accelerator != "cuda" or cuda_home is None:
        return {}
    return {
        "CUDA_HOME": str(cuda_home),
        "TORCH_CUDA_ARCH_LIST": request.archs,
        # dsrun has compared the versions; DeepSpeed's own list ends with CUDA 12 (cuda_minor_mismatch_ok in
        # op_builder/builder.py, 0.19.8).
        "DS_SKIP_CUDA_CHECK": "1",
        # Without a GPU some builders ask for one to decide whether they can be compiled.
        "DS_IGNORE_CUDA_DETECTION": "1",
        # One compiler per job: nvcc would start one per architecture on top of MAX_JOBS, up to eight of them by default
        # (CUDAOpBuilder.nvcc_args).
        "DS_NVCC_THREADS": "1",
    }


def difference(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """What to change in `before` to get `after`; None is a variable to unset."""
    changed: dict[str, str | None] = {name: value for name, value in after.items() if before.get(name) != value}
    return changed | {name: None for name in before if name not in after}


PART_VERSION = "+dsrun"
"""The local version while operations are compiled apart: they may become parts of several wheels."""

RECIPE = "2"
"""Version of the way dsrun builds. Raise it when the same inputs give other bytes than before."""


@dataclass(frozen=True, kw_only=True)
class WheelRequest:
    """One wheel. Two requests are equal exactly when their wheels may be exchanged for one another.

    deepspeed: version as in its version.txt; source: digest of its sources; label: "" or how another than a released
    source is marked in a local version ("patched.1a2b3c"). torch: full version; cuda: CUDA that torch was built for,
    nvcc: version of the compiler, both "" on CPU. python: interpreter tag ("cp311"). platform: kernel, machine and C
    library. archs: TORCH_CUDA_ARCH_LIST as DeepSpeed takes it ("8.0;9.0+PTX"), "" on CPU. ops: names, sorted. cpu:
    instruction set of the host code. compiler: kind and version of the C++ compiler. symbols: whether debug symbols
    stay in. environment: search paths of headers and libraries that the compilers saw.
    """

    deepspeed: str
    source: str
    label: str = ""
    torch: str
    cuda: str = ""
    nvcc: str = ""
    python: str
    platform: str
    accelerator: Literal["cuda", "cpu"]
    archs: str = ""
    ops: tuple[str, ...]
    cpu: str
    compiler: str
    symbols: bool = False
    environment: tuple[tuple[str, str], ...] = ()
    recipe: str = RECIPE

    def as_dict(self) -> dict[str, Any]:
        """The inputs as plain JSON values, in the order of the fields."""
        return asdict(self) | {"ops": list(self.ops), "environment": dict(self.environment)}

    @property
    def key(self) -> str:
        """Name of the request in the store: the first 20 hexadecimal digits of the inputs' SHA-256."""
        text = json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    @property
    def local_version(self) -> str:
        """Local version: "cu130torch2.13.sm80.sm90.k1a2b3c4d", "cputorch2.13.x8664v3.k1a2b3c4d".

        The last part is the beginning of the key: different wheels have different versions, so that pip replaces one
        by the other. Only letters, digits and dots, and numbers without zeros in front, as PEP 440 wants it.
        """
        torch = ".".join(re.findall(r"\d+", self.torch)[:2])
        if self.accelerator == "cuda":
            # `9.0+PTX` is sm90ptx: code for 9.0 and PTX that later GPUs can compile.
            archs = self.archs.replace(".", "").replace("+PTX", "ptx").split(";")
            parts = [f"cu{self.cuda.replace('.', '')}torch{torch}", *(f"sm{arch}" for arch in archs)]
        else:
            # native.zen4.1a2b3c4d: the digest at the end is part of the key.
            level = self.cpu.rpartition(".")[0] if self.cpu.startswith("native.") else self.cpu
            parts = [f"cputorch{torch}", re.sub(r"[^a-z0-9]", "", level.lower())]
        return str(Version("0+" + ".".join(filter(None, [*parts, self.label, f"k{self.key[:8]}"]))).local)
