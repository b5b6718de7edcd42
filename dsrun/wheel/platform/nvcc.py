"""The CUDA compiler: of a toolkit on this machine, or from packages in site-packages."""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dsrun.errors import ToolError, UsageError
from dsrun.system.process.proc import capture
from dsrun.wheel.platform.arch import ComputeCapability
from dsrun.wheel.platform.cxx import CxxCompiler, asked, has_function

_TIMEOUT_S = 60.0
_RELEASE = re.compile(r"\brelease (\d+)\.(\d+)")
_TOP = re.compile(r"^#\$ TOP=(.+)$", re.MULTILINE)
_HOST_CONFIG = "include/crt/host_config.h"
# Its checks: `#if __GNUC__ > 15`, `#if (__clang_major__ >= 21) || (__clang_major__ < 3) || …`.
_LIMITS = {
    "gcc": (re.compile(r"^#if __GNUC__ > (\d+)", re.MULTILINE), 0),
    "clang": (re.compile(r"^#if \(__clang_major__ >= (\d+)\)", re.MULTILINE), 1),
}
_SYSTEM_HOMES = ("usr/local/cuda", "opt/cuda")
# What torch's CUDA headers include beyond the runtime; small toolkits lack it, torch's own packages bring it.
_LIBRARY_HEADERS = ("cublas_v2.h", "cusparse.h", "cusolverDn.h")
_VERSIONED_SO = re.compile(r"(lib[\w+-]+\.so)\.[\d.]+")


@dataclass(frozen=True, kw_only=True)
class Nvcc:
    """An nvcc: the program, its version ("13.0"), the toolkit it belongs to, and who named it.

    `origin` is "CUDA_HOME", "PATH", "system" or "site-packages"."""

    path: Path
    version: str
    home: Path
    origin: str

    @property
    def major(self) -> int:
        """First number of the version; torch refuses another major than its own."""
        return int(self.version.split(".", maxsplit=1)[0])


def find_nvcc(
    environ: Mapping[str, str], site_packages: Path | None = None, *, cuda: str | None = None, root: Path = Path("/")
) -> Nvcc | None:
    """The nvcc to build with; None when there is none.

    CUDA_HOME (or CUDA_PATH) decides when it is set. Otherwise, of those on PATH, in the usual folders under
    `root` and in `site_packages`, the first that has torch's version `cuda` ("13.0"), else the first with its
    major, else the first. Raises UsageError when CUDA_HOME contains no nvcc that works."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if environ.get(name):
            return _of_home(Path(environ[name]), name)
    found = all_nvcc(environ, site_packages, root=root)
    wanted = cuda or ""

    def distance(nvcc: Nvcc) -> tuple[bool, bool]:
        return nvcc.version != wanted, nvcc.version.split(".")[0] != wanted.split(".")[0]

    return min(found, key=distance if cuda else lambda _: (False, False), default=None)


def _of_home(home: Path, name: str) -> Nvcc:
    path = home / "bin/nvcc"
    version = nvcc_version(path) if path.exists() else None
    if version is None:
        state = "does not answer" if path.exists() else "is not there (a runtime without the compiler?)"
        fix = f"set {name} to a CUDA toolkit with nvcc, or unset it"
        raise UsageError(f"{name} is {home}, but {path} {state}", fix=fix)
    return Nvcc(path=path, version=version, home=home, origin="CUDA_HOME")


def all_nvcc(
    environ: Mapping[str, str], site_packages: Path | None = None, *, root: Path = Path("/")
) -> tuple[Nvcc, ...]:
    """Every nvcc that works, in the order in which they are preferred."""
    found: dict[Path, Nvcc] = {}
    for path, origin in _candidates(environ, site_packages, root):
        version = nvcc_version(path)
        if version is None:
            continue
        home = toolkit_home(path)
        found.setdefault(home.resolve(), Nvcc(path=path, version=version, home=home, origin=origin))
    return tuple(found.values())


def _candidates(environ: Mapping[str, str], site_packages: Path | None, root: Path) -> Iterator[tuple[Path, str]]:
    on_path = shutil.which("nvcc", path=environ.get("PATH"))
    if on_path:
        yield Path(on_path), "PATH"
    versioned = sorted((root / "usr/local").glob("cuda-*"), reverse=True)
    for home in (*(root / name for name in _SYSTEM_HOMES), *versioned):
        if (home / "bin/nvcc").exists():
            yield home / "bin/nvcc", "system"
    if site_packages is not None:
        for path in sorted(site_packages.glob("nvidia/cu*/bin/nvcc"), reverse=True):
            yield path, "site-packages"


def nvcc_version(path: Path) -> str | None:
    """ "13.0" from `nvcc --version`; None when `path` cannot be run or says something else."""
    answer = asked([str(path), "--version"])
    found = _RELEASE.search(answer.stdout) if answer and answer.returncode == 0 else None
    return f"{found[1]}.{found[2]}" if found else None


def compiled_by(nvcc: Nvcc) -> frozenset[ComputeCapability] | None:
    """The compute capabilities that it compiles for, as it lists them; None if it does not."""
    answer = asked([str(nvcc.path), "--list-gpu-code"])
    listed = re.findall(r"^sm_(\d+)(\d)$", answer.stdout if answer else "", re.MULTILINE)
    return frozenset((int(major), int(minor)) for major, minor in listed) or None


def host_limits(home: Path) -> dict[str, int]:
    """The newest major version of gcc and clang that toolkit `home` takes, by its crt/host_config.h; {} without it."""
    limits: dict[str, int] = {}
    for header in (home / _HOST_CONFIG, *home.glob(f"targets/*/{_HOST_CONFIG}")):
        text = header.read_text(encoding="utf-8", errors="replace") if header.exists() else ""
        for kind, (pattern, above) in _LIMITS.items():
            if found := pattern.search(text):
                limits[kind] = int(found[1]) - above
    return limits


def toolkit_home(path: Path) -> Path:
    """The folder that serves as CUDA_HOME for nvcc `path`: the one with bin/nvcc and the runtime's header.

    The folder above bin/ is wrong when nvcc on PATH is a script (Debian's, or one in /usr/local/bin): then nvcc
    itself says where it lives."""
    places = [path.resolve().parent.parent, path.parent.parent]
    answer = asked([str(path), "--dryrun", "-x", "cu", "-c", "/dev/null"])
    if answer and (top := _TOP.search(answer.stderr)):
        places.insert(0, Path(os.path.normpath(top[1].strip())))
    whole = [place for place in places if (place / "bin/nvcc").exists() and has_runtime(place)]
    return (whole or places)[0]


def has_runtime(home: Path) -> bool:
    """Whether toolkit `home` has the CUDA runtime's header (conda keeps it under targets/)."""
    return _has_header(home, "cuda_runtime.h")


def _has_header(home: Path, header: str) -> bool:
    return (home / "include" / header).exists() or any(home.glob(f"targets/*/include/{header}"))


def prepare_home(nvcc: Nvcc, site_packages: Path | None, folder: Path, cxx: CxxCompiler) -> Path:
    """The CUDA_HOME to build with: the toolkit's own when it is whole, else one of links in `folder`.

    DeepSpeed and torch want CUDA_HOME/lib64/libX.so; the packages in site-packages have lib/libX.so.N. A toolkit
    of nvcc and runtime alone lacks the headers of cuBLAS, cuSPARSE and cuSOLVER, which torch's headers include:
    they are taken from the packages of the same major that torch brought. A libcuda.so without content is put in
    when there is none to link with: the driver has the real one on every machine with a GPU, and nothing that
    is built calls it directly."""
    extra = _packages(site_packages / "nvidia", nvcc.major) if site_packages else []
    whole = all(_has_header(nvcc.home, header) for header in _LIBRARY_HEADERS)
    if whole and nvcc.origin != "site-packages" and _links_driver(nvcc.home, cxx):
        return nvcc.home
    places = [nvcc.home, *(place for place in extra if place != nvcc.home)]
    if folder.exists():
        shutil.rmtree(folder)
    for name in ("bin", "nvvm"):
        if (nvcc.home / name).exists():
            _link(folder / name, nvcc.home / name)
    for place in places:
        for include in (place / "include", *place.glob("targets/*/include")):
            for entry in include.iterdir() if include.is_dir() else ():
                _link(folder / "include" / entry.name, entry)
        for libraries in (place / "lib64", place / "lib", *place.glob("targets/*/lib")):
            _link_libraries(folder / "lib64", libraries)
    _link(folder / "lib", folder / "lib64")
    _add_driver(folder / "lib64", cxx)
    return folder


def _packages(nvidia: Path, major: int) -> list[Path]:
    """Folders with headers of CUDA's libraries for this major: one for all since CUDA 13, one for each before."""
    if major >= 13:
        return [nvidia / f"cu{major}", nvidia / "nccl"]
    return sorted(place.parent for place in nvidia.glob("*/include") if not place.parent.name.startswith("cu1"))


def _links_driver(home: Path, cxx: CxxCompiler) -> bool:
    return has_function(cxx, "cuInit", "cuda", folders=[home / "lib64"])


def _link_libraries(into: Path, folder: Path) -> None:
    if not folder.is_dir():
        return
    for entry in sorted(folder.iterdir()):
        _link(into / entry.name, entry)
        versioned = _VERSIONED_SO.fullmatch(entry.name)
        if versioned and not (folder / versioned[1]).exists():
            _link(into / versioned[1], entry)


def _link(link: Path, target: Path) -> None:
    """Make `link` point to `target`; what an earlier place put there stays."""
    if not link.is_symlink() and not link.exists():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)


def _add_driver(libraries: Path, cxx: CxxCompiler) -> None:
    if (libraries / "libcuda.so").exists() or _links_driver(libraries.parent, cxx):
        return
    stubs = libraries / "stubs/libcuda.so"
    if stubs.exists():
        _link(libraries / "libcuda.so", stubs)
        return
    libraries.mkdir(parents=True, exist_ok=True)
    argv = [str(cxx.path), "-shared", "-Wl,-soname,libcuda.so.1", "-x", "c++", "/dev/null"]
    answer = capture([*argv, "-o", str(libraries / "libcuda.so")], seconds=_TIMEOUT_S)
    if answer.returncode:
        raise ToolError(f"{cxx} could not link an empty library: {answer.stderr.strip().splitlines()[-1:]}")
