"""What operations need beside a compiler: looked for by compiling, and how to install it (build/ops.toml)."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dsrun.datafiles import data_folder
from dsrun.system.capture import ask
from dsrun.system.packages import install_command, package_manager
from dsrun.wheel.toolchain.cxx import Cxx, has_function, has_header

_ASK_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Need:
    """A thing some operations need: the header, function or Python module that proves it, and its packages.

    `variable` names an environment variable whose folder counts as a place of the headers. `cuda`: its packages
    are part of the CUDA toolkit. `packages` are by package manager.
    """

    name: str
    what: str
    headers: tuple[str, ...] = ()
    function: str | None = None
    library: str | None = None
    module: str | None = None
    variable: str | None = None
    cuda: bool = False
    packages: Mapping[str, str]


_FIELDS = ("what", "headers", "function", "library", "module", "variable", "cuda")


@cache
def needs() -> Mapping[str, Need]:
    """Every need of build/ops.toml by name."""
    table = tomllib.loads((data_folder("build") / "ops.toml").read_text(encoding="utf-8"))["need"]
    return {name: _need(name, row) for name, row in table.items()}


def _need(name: str, row: Mapping[str, Any]) -> Need:
    known = {key: row[key] for key in _FIELDS if key in row}
    known["headers"] = tuple(row.get("headers", ()))
    return Need(name=name, packages={key: row[key] for key in row if key not in _FIELDS}, **known)


def need(name: str) -> Need:
    """The need called `name`."""
    return needs()[name]


def way_to_install(name: str, *, cuda: str | None = None, environ: Mapping[str, str] | None = None) -> str:
    """The command that installs need `name` with the package manager of this machine, else with pip."""
    wanted = need(name)
    environ = os.environ if environ is None else environ
    manager = package_manager(environ)
    # Parts of the CUDA toolkit come from pip first: no root, no extra repository, the version that torch has.
    order = ("pip", manager) if wanted.cuda else (manager, "pip")
    for candidate in order:
        package = wanted.packages.get(candidate or "")
        if candidate and package:
            return install_command(candidate, _filled(package, cuda))
    return (
        f"install {wanted.what}, and set {wanted.variable}" if wanted.variable else f"install {wanted.what}"
    )


def _filled(package: str, cuda: str | None) -> str:
    version = ".".join((cuda or "13.0").split(".")[:2])
    dashed, major = version.replace(".", "-"), version.split(".", maxsplit=1)[0]
    return package.replace("{cuda}", version).replace("{cuda-}", dashed).replace("{major}", major)


class Probe:
    """Answers whether a need is met on this machine, each question by compiling once.

    `home` is the CUDA_HOME that the build will use, `python` the interpreter it runs in. Flags such as CFLAGS do not
    count, since they do not reach the build; CPATH and LIBRARY_PATH do.
    """

    def __init__(
        self, *, cxx: Cxx, home: Path | None, python: str, environ: Mapping[str, str] | None = None
    ) -> None:
        self._cxx = cxx
        self._home = home
        self._python = python
        self._environ = os.environ if environ is None else environ
        self._known: dict[str, bool] = {}

    def available(self, name: str) -> bool:
        """Whether need `name` is met."""
        if name not in self._known:
            self._known[name] = self._query(need(name))
        return self._known[name]

    def _query(self, wanted: Need) -> bool:
        if wanted.module and self._has_module(wanted.module):
            return True
        if wanted.module and not wanted.headers:
            return False
        if wanted.name == "oneccl" and not self._environ.get("CCL_ROOT"):
            return False  # its builder raises without the variable, wherever the header is
        include = self._include(wanted)
        if not all(has_header(self._cxx, header, include=include) for header in wanted.headers):
            return False
        if wanted.library is None or wanted.function is None:
            return True
        return has_function(self._cxx, wanted.function, wanted.library, folders=self._folders())

    def _include(self, wanted: Need) -> list[Path]:
        named = self._environ.get(wanted.variable, "") if wanted.variable else ""
        roots = [Path(named)] if named else []
        if self._home is not None:
            roots.append(self._home)
        return [folder for root in roots for folder in (root / "include", root) if folder.is_dir()]

    def _folders(self) -> list[Path]:
        return [] if self._home is None else [self._home / "lib64"]

    def _has_module(self, module: str) -> bool:
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
        return ask([self._python, "-c", code], seconds=_ASK_S).exit_code == 0
