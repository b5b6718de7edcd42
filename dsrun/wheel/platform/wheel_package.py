"""What build-wheel compiles: each package's sources, variables, extension modules and memory (build/packages.toml)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from packaging.utils import canonicalize_name

from dsrun.datafiles import data_folder, read_toml
from dsrun.errors import did_you_mean
from dsrun.refusals import Refusals
from dsrun.wheel.platform.ops import DEEPSPEED, DeepspeedOp

_TEXTS = Refusals(__file__, "refusals.toml")
_VERSION_LINE = re.compile(r"^__version__\s*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class WheelPackage:
    """A package with compiled modules, as its setup.py builds it.

    name: as pip normalises it. default, sdist: the version built by default ("" when none is released as a source
    distribution) and the SHA-256 (hex) of each. tree: what its source tree holds; version_file: where its version
    stands. variables: prefixes of the variables that its setup.py reads. metadata: those with which it tells its name
    without looking for a compiler; environment: those with which it compiles, by accelerator. modules: the extension
    modules that the wheel must hold and that load, by accelerator; of a CUDA build each holds GPU code. lowest: the
    compute capability below which they have none. gib: memory of one compiler in GiB, by accelerator."""

    name: str
    title: str
    version_file: str
    gib: Mapping[str, float]
    tree: tuple[str, ...]
    default: str = ""
    sdist: Mapping[str, str] = field(default_factory=dict)
    variables: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    modules: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lowest: str | None = None

    @property
    def stem(self) -> str:
        """The name as its files have it: causal_conv1d."""
        return self.name.replace("-", "_")

    def version_in(self, text: str) -> str:
        """The version that its `version_file` holds: assigned to __version__, or all of it."""
        found = _VERSION_LINE.search(text)
        return found[1] if found else text.strip()

    def job_bytes(self, *, kernels: bool) -> int:
        """Bytes of memory that one of its compilers needs, with or without kernels among its files."""
        return int(self.gib["cuda" if kernels else "cpu"] * 2**30)

    def operations(self, kind: str, origin: str) -> tuple[DeepspeedOp, ...]:
        """Its extension modules for accelerator `kind` ("cuda" or "cpu"). Raises UsageError when it has none; `origin`
        tells the user why it was to be this one."""
        if kind not in self.modules:
            raise _TEXTS.error("package.no_cpu", name=self.name, origin=origin)
        return tuple(
            DeepspeedOp(
                name=module,
                variable="",
                code="cuda" if kind == "cuda" else "host",
                accelerators=(kind,),
                library=module.replace(".", "/"),
                lowest=self.lowest if kind == "cuda" else None,
                package=self.name,
            )
            for module in self.modules[kind]
        )


@cache
def wheel_package(name: str = DEEPSPEED) -> WheelPackage:
    """The package called `name`. Raises UsageError for one that is not known, or that nothing can be compiled of."""
    known: dict[str, dict[str, Any]] = read_toml(data_folder("build") / "packages.toml")
    key = canonicalize_name(name.strip())
    if key in known["refused"]:
        raise _TEXTS.error("package.refused", name=key, **known["refused"][key])
    if key not in known["packages"]:
        near = did_you_mean(key, known["packages"], "")
        every = ", ".join(known["packages"])
        raise _TEXTS.error("package.unknown", name=name, known=every, near=f"{near} " if near else "")
    row = known["packages"][key]
    if key == DEEPSPEED:
        row = row | read_toml(data_folder("build") / "deepspeed.lock.toml")
    row = {"title": key, "tree": ["setup.py", row["version_file"]], **row}
    lists = {field: tuple(value) for field, value in row.items() if isinstance(value, list)}
    return WheelPackage(name=key, **{**row, **lists})
