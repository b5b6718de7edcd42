"""C++ compilers of this machine, and what can be included and linked with them."""

import errno
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, Literal

from dsrun.datafiles import data_folder, read_toml, toml_beside
from dsrun.errors import MissingError, ToolError, UsageError
from dsrun.findings.finding import text_of
from dsrun.messages import Message
from dsrun.refusals import Refusals
from dsrun.system.process.proc import capture
from dsrun.system.process.scratch import scratch_folder

_TIMEOUT_S = 60.0
_CACHES = ("ccache", "sccache")
_PACKAGES = toml_beside(__file__, "packages.toml")
_VERSIONED = re.compile(r"(g\+\+|clang\+\+)-\d+")


@dataclass(frozen=True, kw_only=True)
class CxxCompiler:
    """A C++ compiler: the program, whether it is gcc or clang (or behaves like it), and its version ("12.2.0")."""

    path: Path
    kind: Literal["gcc", "clang"]
    version: str

    @property
    def major(self) -> int:
        """First number of the version, by which nvcc limits host compilers."""
        return int(self.version.split(".", maxsplit=1)[0])

    def __str__(self) -> str:
        return f"{self.path.name} {self.version}"


def find_cxx(environ: Mapping[str, str], wanted: str | None = None) -> CxxCompiler:
    """The C++ compiler to build with: `wanted` (--cxx), else the variable CXX, else c++, g++ or clang++.

    Compiler caches in front of it are dropped ("ccache g++" is g++). Raises UsageError when the one that was named
    is not there or not a C++ compiler, MissingError when there is none at all."""
    for named, by in ((wanted, "--cxx"), (environ.get("CXX"), "the variable CXX")):
        if named and named.strip():
            return _named(named, by, environ)
    for name in ("c++", "g++", "clang++"):
        path = shutil.which(name, path=environ.get("PATH"))
        found = identify(Path(path)) if path else None
        if found:
            return found
    manager = package_manager(environ)
    fix = (
        install_command(manager, _PACKAGES["compilers"][manager]) if manager else "install g++, or name one with --cxx"
    )
    raise MissingError("there is no C++ compiler", fix=fix)


def _named(text: str, by: str, environ: Mapping[str, str]) -> CxxCompiler:
    # A path with spaces is one word when it is there; anything else is read as a shell would.
    try:
        command = [text] if Path(text).exists() else shlex.split(text)
    except (OSError, ValueError):  # too long for a name, or a quote that is not closed
        command = text.split()
    command = [word for word in command if Path(word).name not in _CACHES]
    if len(command) != 1:
        raise UsageError(f"{by} is {text!r}, not one program", fix="name the compiler alone, without flags")
    path = shutil.which(command[0], path=environ.get("PATH"))
    found = identify(Path(path)) if path else None
    if found is None:
        others = ", ".join(other.path.name for other in all_cxx(environ)) or "none"
        state = "not a C++ compiler" if path else "not there"
        raise UsageError(f"{by} names {command[0]!r}, which is {state}", fix=f"compilers here: {others}")
    return found


def all_cxx(environ: Mapping[str, str]) -> tuple[CxxCompiler, ...]:
    """The C++ compilers on PATH with and without a version in their names, the first of each name."""
    names = {"c++", "g++", "clang++"}
    for folder in environ.get("PATH", "").split(":"):
        if folder and Path(folder).is_dir():
            names |= {entry.name for entry in Path(folder).iterdir() if _VERSIONED.fullmatch(entry.name)}
    paths = (shutil.which(name, path=environ.get("PATH")) for name in sorted(names))
    found = (identify(Path(path)) for path in paths if path)
    return tuple(cxx for cxx in found if cxx)


def identify(path: Path) -> CxxCompiler | None:
    """Identify compiler `path` by its predefined macros; None when it does not compile C++.

    The name does not tell: `c++` is clang on some systems, and module systems put wrappers in front."""
    macros = predefined(path)
    if "__clang_major__" in macros:
        parts = [macros.get(f"__clang_{part}__", "0") for part in ("major", "minor", "patchlevel")]
        return CxxCompiler(path=path, kind="clang", version=".".join(parts))
    if "__GNUC__" in macros and "__cplusplus" in macros:
        parts = [macros.get(name, "0") for name in ("__GNUC__", "__GNUC_MINOR__", "__GNUC_PATCHLEVEL__")]
        return CxxCompiler(path=path, kind="gcc", version=".".join(parts))
    return None


def asked(argv: Sequence[str]) -> CompletedProcess[str] | None:
    """What a compiler answers; None where it cannot be run, or takes too long."""
    try:
        return capture(argv, seconds=_TIMEOUT_S)
    except (MissingError, ToolError, OSError):
        return None


def predefined(path: Path, flags: Sequence[str] = ()) -> dict[str, str]:
    """The macros that compiler `path` predefines under `flags`; empty when it refuses them."""
    answer = asked([str(path), *flags, "-dM", "-E", "-x", "c++", "/dev/null"])
    if answer is None or answer.returncode:
        return {}
    lines = (line.split(maxsplit=2) for line in answer.stdout.splitlines())
    return {line[1]: line[2] if len(line) > 2 else "" for line in lines if len(line) > 1}


def c_compiler(cxx: CxxCompiler) -> Path | None:
    """The C compiler of the same installation (gcc-12 beside g++-12); None when it is not there.

    DeepSpeed's probe for libaio compiles C (OpBuilder.has_function), which a C++ compiler would mangle."""
    name = cxx.path.name
    for plus, plain in (("clang++", "clang"), ("g++", "gcc"), ("c++", "cc")):
        if plus in name:
            sibling = cxx.path.with_name(name.replace(plus, plain))
            return sibling if sibling.exists() else None
    return None


def compiler_cache(environ: Mapping[str, str]) -> Path | None:
    """ccache, else sccache, when it is on PATH and not switched off (CCACHE_DISABLE)."""
    if environ.get("CCACHE_DISABLE"):
        return None
    paths = (shutil.which(name, path=environ.get("PATH")) for name in _CACHES)
    return next((Path(path) for path in paths if path), None)


def has_header(cxx: CxxCompiler, header: str, *, include: Sequence[Path] = ()) -> bool:
    """Whether `#include <header>` works, with the folders `include` and the compiler's own."""
    folders = [f"-I{folder}" for folder in include]
    return _compiles(cxx, f"#include <{header}>\n", [*folders, "-E", "-o", "/dev/null"])


def has_function(cxx: CxxCompiler, function: str, library: str, *, folders: Sequence[Path] = ()) -> bool:
    """Whether a program that calls C `function` links with `library` found in `folders` or the linker's own."""
    source = f'extern "C" void {function}(void);\nint main() {{ {function}(); }}\n'
    places = [f"-L{folder}" for folder in folders]
    return _compiles(cxx, source, [*places, "-o", "probe"], [f"-l{library}", "-Wl,--allow-shlib-undefined"])


def _compiles(cxx: CxxCompiler, source: str, before: Sequence[str], after: Sequence[str] = ()) -> bool:
    with scratch_folder("dsrun-probe-") as folder:
        (folder / "probe.cpp").write_text(source, encoding="utf-8")
        argv = [str(cxx.path), *before, "probe.cpp", *after]
        try:
            answer = capture(argv, seconds=_TIMEOUT_S, cwd=folder, changes={"LC_ALL": "C"})
        except ToolError:
            return False
        if answer.returncode and os.strerror(errno.ENOSPC) in answer.stderr:
            # Else what is looked for would seem to be missing.
            raise Refusals(__file__, "refusals.toml").error(
                "probe.disk", folder=os.environ.get("TMPDIR") or folder.parent
            )
        return answer.returncode == 0


def package_manager(environ: Mapping[str, str]) -> str | None:
    """ "conda" inside an activated conda environment, else the system's: apt, dnf, zypper or pacman; None without.

    conda comes first: users of a cluster are not root, and its compilers look into its own prefix."""
    path = environ.get("PATH")
    if environ.get("CONDA_PREFIX") and any(shutil.which(name, path=path) for name in ("conda", "mamba")):
        return "conda"
    found = (kind for program, kind in _PACKAGES["programs"].items() if shutil.which(program, path=path))
    return next(found, None)


def install_command(manager: str, packages: str) -> str:
    """The command line that installs `packages` (separated by spaces) with `manager`."""
    command = _PACKAGES["commands"][manager].removeprefix("" if os.geteuid() else "sudo ")
    names = [f"'{word}'" if any(sign in word for sign in "[]*=<>:") else word for word in packages.split()]
    return f"{command} {' '.join(names)}"


@dataclass(frozen=True, kw_only=True)
class BuildNeed:
    """A thing some operations need: the header, function or Python module that proves it, and its packages.

    `variable` names an environment variable whose folder counts as a place of the headers. `cuda`: its packages
    are part of the CUDA toolkit. `packages` are by package manager."""

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
def needs() -> Mapping[str, BuildNeed]:
    """Every need of build/ops.toml by name."""
    table = read_toml(data_folder("build") / "ops.toml")["need"]
    found = {}
    for name, row in table.items():
        known: dict[str, Any] = {key: row[key] for key in _FIELDS if key in row}
        known["headers"] = tuple(row.get("headers", ()))
        found[name] = BuildNeed(name=name, packages={key: row[key] for key in row if key not in _FIELDS}, **known)
    return found


def way_to_install(name: str, *, cuda: str | None = None, environ: Mapping[str, str] | None = None) -> str:
    """The command that installs need `name` with the package manager of this machine, else with pip."""
    wanted = needs()[name]
    environ = os.environ if environ is None else environ
    manager = package_manager(environ)
    # Parts of the CUDA toolkit come from pip first: no root, no extra repository, the version that torch has.
    order = ("pip", manager) if wanted.cuda else (manager, "pip")
    for candidate in order:
        package = wanted.packages.get(candidate or "")
        if candidate and package:
            return install_command(candidate, _filled(package, cuda))
    if wanted.variable:
        return text_of("need.variable", what=Message(wanted.what), variable=wanted.variable)
    return text_of("need.what", what=Message(wanted.what))


def _filled(package: str, cuda: str | None) -> str:
    version = ".".join((cuda or "13.0").split(".")[:2])
    dashed, major = version.replace(".", "-"), version.split(".", maxsplit=1)[0]
    return package.replace("{cuda}", version).replace("{cuda-}", dashed).replace("{major}", major)


class CompileProbe:
    """Checks whether a need is met on this machine, compiling once for each.

    `home` is the CUDA_HOME that the build will use, `python` the interpreter it runs in. Flags such as CFLAGS do not
    count, since they do not reach the build; CPATH and LIBRARY_PATH do."""

    def __init__(
        self, *, cxx: CxxCompiler, home: Path | None, python: str, environ: Mapping[str, str] | None = None
    ) -> None:
        self._cxx = cxx
        self._home = home
        self._python = python
        self._environ = os.environ if environ is None else environ
        self._known: dict[str, bool] = {}

    def available(self, name: str) -> bool:
        if name not in self._known:
            self._known[name] = self._query(needs()[name])
        return self._known[name]

    def _query(self, wanted: BuildNeed) -> bool:
        if wanted.module:
            code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({wanted.module!r}) is None)"
            found = capture([self._python, "-c", code], seconds=_TIMEOUT_S).returncode == 0
            if found or not wanted.headers:
                return found
        if wanted.name == "oneccl" and not self._environ.get("CCL_ROOT"):
            return False  # its builder raises without the variable, wherever the header is
        include = self._include(wanted)
        if not all(has_header(self._cxx, header, include=include) for header in wanted.headers):
            return False
        if wanted.library is None or wanted.function is None:
            return True
        folders = [] if self._home is None else [self._home / "lib64"]
        return has_function(self._cxx, wanted.function, wanted.library, folders=folders)

    def _include(self, wanted: BuildNeed) -> list[Path]:
        named = self._environ.get(wanted.variable, "") if wanted.variable else ""
        roots = [Path(named)] if named else []
        if self._home is not None:
            roots.append(self._home)
        return [folder for root in roots for folder in (root / "include", root) if folder.is_dir()]
