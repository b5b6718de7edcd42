"""The environment a build runs in: what dsrun sets, and what it keeps away from the compilers."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from packaging.version import Version

from dsrun.datafiles import toml_beside
from dsrun.wheel.platform.ops import DEEPSPEED, DeepspeedOp, op_table
from dsrun.wheel.platform.wheel_package import wheel_package

SEARCH_PATHS = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "CCL_ROOT", "CUTLASS_PATH")
"""Where compilers and DeepSpeed look for headers and libraries. They pass, and are part of the request's key."""

FLAGS = ("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "ARCHFLAGS")
"""Flags of somebody else's build (conda sets them on activation): a wheel must not depend on them."""

_NOT_FOR_BUILDS = (*FLAGS, *["CC", "CXX", "LDSHARED", "LDCXXSHARED", "AR", "MAX_JOBS", "NVCC_CCBIN", "COMPILER_PATH"])
_PREFIXES = ("DS_", "TORCH_", "PYTORCH_", "CUDA_", "NINJA", "DISTUTILS", "SETUPTOOLS", "GCC_", "PYTHONHASHSEED")


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
    somebody else's build is dropped."""
    wanted = {op.name for op in ops}
    package = wheel_package(request.package)
    dropped = (*_PREFIXES, *package.variables)
    kept = {
        name: value for name, value in environ.items() if name not in _NOT_FOR_BUILDS and not name.startswith(dropped)
    }
    tables = toml_beside(__file__)
    groups = ["every"] if request.symbols else ["every", "without_symbols"]
    switches: dict[str, str] = {}
    if package.name == DEEPSPEED:
        groups.append("deepspeed")
        switches = {op.variable: str(int(op.name in wanted)) for op in op_table(request.version)}
    if request.accelerator == "cuda" and cuda_home:
        groups += [group for group in ("cuda", f"{package.name}_cuda") if group in tables]
    rows = {name: text for group in groups for name, text in tables[group].items()}
    rows |= package.environment.get(request.accelerator, {})
    names = {
        **vars(request), "part_version": PART_VERSION, "jobs": jobs, "trees": trees, "cuda_home": cuda_home,
        "programs": python.parent, "path": environ.get("PATH", "/usr/bin:/bin"),
    }  # fmt: skip
    return {**kept, **switches, **compilers, **{name: text.format_map(names) for name, text in rows.items()}}


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

    package, version: as released; source: digest of its sources; label: "" or how another than a released
    source is marked in a local version ("patched.1a2b3c"). torch: full version; cuda: CUDA that torch was built for,
    nvcc: version of the compiler, both "" on CPU. python: interpreter tag ("cp311"). platform: kernel, machine and C
    library. archs: TORCH_CUDA_ARCH_LIST as DeepSpeed takes it ("8.0;9.0+PTX"), "" on CPU. ops: names, sorted. cpu:
    instruction set of the host code. compiler: kind and version of the C++ compiler. symbols: whether debug symbols
    stay in. environment: search paths of headers and libraries that the compilers saw."""

    package: str = DEEPSPEED
    version: str
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
        values = asdict(self) | {"ops": list(self.ops), "environment": dict(self.environment)}
        if self.package != DEEPSPEED:
            return values
        del values["package"]  # so has every record and key of DeepSpeed been written
        return {DEEPSPEED: values.pop("version"), **values}

    @property
    def key(self) -> str:
        """Name of the request in the store: the first 20 hexadecimal digits of the inputs' SHA-256."""
        text = json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    @property
    def full_version(self) -> str:
        """Version of the wheel: the package's, and the local one."""
        return f"{self.version}+{self.local_version}"

    @property
    def local_version(self) -> str:
        """Local version: "cu130torch2.13.sm80.sm90.k1a2b3c4d", "cputorch2.13.x8664v3.k1a2b3c4d".

        The last part is the beginning of the key: different wheels have different versions, so that pip replaces one
        by the other. Only letters, digits and dots, and numbers without zeros in front, as PEP 440 wants it."""
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
