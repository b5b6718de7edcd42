"""Which GPU can run which GPU code (CUDA C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility")."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from dsrun.wheel.cuda_facts import Capability, tegra
from dsrun.wheel.fatbin import arch_order

# "sass": runs as it is. "ptx": the driver compiles it first. "tegra": would have to cross between the desktop and
# the Tegra chips of one major version, for which NVIDIA gives no promise.
Service = Literal["sass", "ptx", "tegra", "none"]

_CUDA_OF_EARLY_8 = {5: "12.5", 6: "12.7", 7: "12.8", 8: "12.9"}


def service(sass: Iterable[str], ptx: Iterable[str], gpu: Capability) -> Service:
    """The best way a library with this code serves a GPU; `sass` and `ptx` as in dsrun.wheel.inspect.Library."""
    fits = [arch for arch in sass if _binary_fits(arch, gpu)]
    if any(_same_family(arch, gpu) for arch in fits):
        return "sass"
    if any(_ptx_fits(arch, gpu) for arch in ptx):
        return "ptx"
    return "tegra" if fits else "none"


def _binary_fits(arch: str, gpu: Capability) -> bool:
    """Code for X.y runs on X.z with z >= y; with the suffix "a" on X.y alone, with "f" within its family."""
    major, minor, suffix = arch_order(arch)
    if suffix == "a":
        return (major, minor) == gpu
    return major == gpu[0] and minor <= gpu[1] and (suffix != "f" or _same_family(arch, gpu))


def _same_family(arch: str, gpu: Capability) -> bool:
    major, minor, _ = arch_order(arch)
    return (major, minor) == gpu or ((major, minor) in tegra()) == (gpu in tegra())


def _ptx_fits(arch: str, gpu: Capability) -> bool:
    """PTX for X.y compiles for everything from X.y on; with the suffix "a" or "f" it is bound like a binary."""
    major, minor, suffix = arch_order(arch)
    return _binary_fits(arch, gpu) if suffix else (major, minor) <= gpu


def cuda_of_isa(isa: str) -> str:
    """The first CUDA whose driver reads a PTX ISA version (PTX ISA manual, "Release Notes"): "9.0" -> "13.0"."""
    major, minor = (int(part) for part in isa.split("."))
    if major == 8 and minor in _CUDA_OF_EARLY_8:
        return _CUDA_OF_EARLY_8[minor]
    return f"{major + 4}.{minor}"


def sm(gpu: Capability) -> str:
    """nvcc's name of a compute capability: (9, 0) -> "sm_90"."""
    return f"sm_{gpu[0]}{gpu[1]}"
