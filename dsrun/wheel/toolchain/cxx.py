"""C++ compilers of this machine, and what can be included and linked with them."""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dsrun.errors import MissingError, ToolError, UsageError
from dsrun.system.capture import ask
from dsrun.system.packages import install_command, package_manager

_ASK_S = 60.0
_CACHES = ("ccache", "sccache")
_PACKAGES = {
    "apt": "g++",
    "dnf": "gcc-c++",
    "zypper": "gcc-c++",
    "pacman": "gcc",
    "conda": "conda-forge::gxx",
}
_VERSIONED = re.compile(r"(g\+\+|clang\+\+)-\d+")


@dataclass(frozen=True, kw_only=True)
class Cxx:
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


def find_cxx(environ: Mapping[str, str], wanted: str | None = None) -> Cxx:
    """The C++ compiler to build with: `wanted` (--cxx), else the variable CXX, else c++, g++ or clang++.

    Compiler caches in front of it are dropped ("ccache g++" is g++). Raises UsageError when the one that was named
    is not there or not a C++ compiler, MissingError when there is none at all.
    """
    for named, by in ((wanted, "--cxx"), (environ.get("CXX"), "the variable CXX")):
        if named and named.strip():
            return _named(named, by, environ)
    for name in ("c++", "g++", "clang++"):
        path = shutil.which(name, path=environ.get("PATH"))
        found = identify(Path(path)) if path else None
        if found:
            return found
    manager = package_manager(environ)
    fix = install_command(manager, _PACKAGES[manager]) if manager else "install g++, or name one with --cxx"
    raise MissingError("there is no C++ compiler", fix=fix)


def _named(text: str, by: str, environ: Mapping[str, str]) -> Cxx:
    # A path with spaces is one word when it is there; anything else is read as a shell would.
    try:
        words = [text] if Path(text).exists() else shlex.split(text)
    except (OSError, ValueError):  # too long for a name, or a quote that is not closed
        words = text.split()
    words = [word for word in words if Path(word).name not in _CACHES]
    if len(words) != 1:
        raise UsageError(f"{by} is {text!r}, not one program", fix="name the compiler alone, without flags")
    path = shutil.which(words[0], path=environ.get("PATH"))
    found = identify(Path(path)) if path else None
    if found is None:
        others = ", ".join(other.path.name for other in all_cxx(environ)) or "none"
        state = "not a C++ compiler" if path else "not there"
        raise UsageError(f"{by} names {words[0]!r}, which is {state}", fix=f"compilers here: {others}")
    return found


def all_cxx(environ: Mapping[str, str]) -> tuple[Cxx, ...]:
    """The C++ compilers on PATH with and without a version in their names, the first of each name."""
    names = {"c++", "g++", "clang++"}
    for folder in environ.get("PATH", "").split(":"):
        if folder and Path(folder).is_dir():
            names |= {entry.name for entry in Path(folder).iterdir() if _VERSIONED.fullmatch(entry.name)}
    paths = (shutil.which(name, path=environ.get("PATH")) for name in sorted(names))
    found = (identify(Path(path)) for path in paths if path)
    return tuple(cxx for cxx in found if cxx)


def identify(path: Path) -> Cxx | None:
    """What the program `path` says about itself through its predefined macros; None when it does not compile C++.

    The name says nothing: `c++` is clang on some systems, and modules systems put wrappers in front.
    """
    macros = predefined(path)
    if "__clang_major__" in macros:
        parts = [macros.get(f"__clang_{part}__", "0") for part in ("major", "minor", "patchlevel")]
        return Cxx(path=path, kind="clang", version=".".join(parts))
    if "__GNUC__" in macros and "__cplusplus" in macros:
        parts = [macros.get(name, "0") for name in ("__GNUC__", "__GNUC_MINOR__", "__GNUC_PATCHLEVEL__")]
        return Cxx(path=path, kind="gcc", version=".".join(parts))
    return None


def predefined(path: Path, flags: Sequence[str] = ()) -> dict[str, str]:
    """The macros that compiler `path` predefines under `flags`; empty when it refuses them."""
    try:
        answer = ask([str(path), *flags, "-dM", "-E", "-x", "c++", "/dev/null"], seconds=_ASK_S)
    except (MissingError, ToolError, OSError):
        return {}
    if answer.exit_code:
        return {}
    lines = (line.split(maxsplit=2) for line in answer.stdout.splitlines())
    return {line[1]: line[2] if len(line) > 2 else "" for line in lines if len(line) > 1}


def c_compiler(cxx: Cxx) -> Path | None:
    """The C compiler of the same installation (gcc-12 beside g++-12); None when it is not there.

    DeepSpeed's probe for libaio compiles C (OpBuilder.has_function), which a C++ compiler would mangle.
    """
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


def has_header(cxx: Cxx, header: str, *, include: Sequence[Path] = (), flags: Sequence[str] = ()) -> bool:
    """Whether `#include <header>` works, with the folders `include` and the compiler's own."""
    folders = [f"-I{folder}" for folder in include]
    return _compiles(cxx, f"#include <{header}>\n", [*folders, *flags, "-E", "-o", "/dev/null"])


def has_function(
    cxx: Cxx, function: str, library: str, *, folders: Sequence[Path] = (), flags: Sequence[str] = ()
) -> bool:
    """Whether a program that calls C `function` links with `library` found in `folders` or the linker's own."""
    source = f'extern "C" void {function}(void);\nint main() {{ {function}(); }}\n'
    places = [f"-L{folder}" for folder in folders]
    return _compiles(cxx, source, [*flags, *places], [f"-l{library}", "-Wl,--allow-shlib-undefined"])


def _compiles(cxx: Cxx, source: str, before: Sequence[str], after: Sequence[str] = ()) -> bool:
    with tempfile.TemporaryDirectory(prefix="dsrun-probe-") as folder:
        (Path(folder) / "probe.cpp").write_text(source, encoding="utf-8")
        argv = [str(cxx.path), *before, "probe.cpp", *after]
        if "-o" not in before:
            argv += ["-o", "probe"]
        try:
            return ask(argv, seconds=_ASK_S, cwd=Path(folder)).exit_code == 0
        except ToolError:
            return False
