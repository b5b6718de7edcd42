"""Whether this nvcc compiles for the architectures asked for, and this torch holds code for them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dsrun.findings import Finding
from dsrun.hardware.gpus import gpu_table
from dsrun.wheel.target.arch import (
    Arch,
    Archs,
    Capability,
    TorchRelease,
    capability,
    minor_release,
    nvcc_compiles,
    nvcc_versions,
    runs_on,
    split_archs,
    tegra,
    torch_releases,
)

# Boards and sizes of one product: "A100 SXM4 80GB", "GeForce RTX 3060 Laptop".
_BOARD = re.compile(r" (?:PCIe|SXM\d?|NVL|\d+GB|Laptop)(?= |$)")
_SEGMENTS = ("datacenter", "superchip", "jetson", "geforce", "workstation", "titan", "geforce-laptop")
# torch's own index and PyPI label their packages so; "2.9.0a0+nv25.9" or a git hash is somebody's own build.
_RELEASED = re.compile(r"\d+\.\d+\.\d+(\+cu\d+)?")


def check_archs(
    archs: Archs, *, nvcc: str | None, torch_version: str, torch_cuda: str, machine: str = "x86_64"
) -> list[Finding]:
    """What stands against compiling for `archs` with this nvcc and torch.

    `nvcc` "13.0" or longer, None where there is none to ask; `torch_version` "2.13.0+cu130", `torch_cuda` "13.0";
    `machine` as `uname -m` has it. An error names what does serve the GPU. What build/cuda.toml does not hold
    (other people's builds of torch, those for Arm) is said and not judged.
    """
    release = _release(torch_version, torch_cuda) if machine == "x86_64" else None
    findings: list[Finding] = []
    for arch in archs:
        finding = _nvcc_finding(arch, nvcc) or _torch_finding(arch, release)
        if finding:
            findings.append(finding)
    if release is None:
        findings.append(_unknown_torch(torch_version, torch_cuda))
    if len(split_archs(archs)) > 1:
        findings.append(_bf16_lost(archs))
    return findings


def _release(version: str, cuda: str) -> TorchRelease | None:
    """The row that describes this torch; None for other people's builds and other CUDA versions."""
    if not _RELEASED.fullmatch(version):
        return None
    wanted = minor_release(version), minor_release(cuda)
    return next((row for row in torch_releases() if (row.release, row.cuda) == wanted), None)


def serves(release: TorchRelease, wanted: Capability) -> bool:
    """Whether a GPU of capability `wanted` runs the code in this torch."""
    return any(runs_on(Arch(*built), wanted) for built in release.sass)


def serving(wanted: Capability) -> list[TorchRelease]:
    """The releases of torch whose code a GPU of capability `wanted` runs, oldest first."""
    return [row for row in torch_releases() if serves(row, wanted)]


def product_lines(wanted: Capability) -> list[str]:
    """The GPUs of capability `wanted`, each once whatever its memory and board, servers' first."""
    rows = [row for row in gpu_table() if row.capability == wanted]
    rows.sort(key=lambda row: _SEGMENTS.index(row.segment) if row.segment in _SEGMENTS else len(_SEGMENTS))
    return list(dict.fromkeys(_BOARD.sub("", row.name) for row in rows))


def _nvcc_finding(arch: Arch, nvcc: str | None) -> Finding | None:
    if nvcc is None:
        return None
    compiled, whole = nvcc_compiles(nvcc)
    if arch.capability in compiled:
        return None
    version = minor_release(nvcc)
    if not whole:
        return Finding(
            level="warning",
            code="nvcc_unknown",
            message=f"whether nvcc {version} compiles for {_named(arch)} is not known",
            fix="if it does not, nvcc says so",
        )
    later = any(capability(each) > capability(version) for each in _compilers(arch))
    return Finding(
        level="error",
        code="nvcc_cannot_compile",
        message=f"nvcc {version} does not compile for {_named(arch)}",
        fix=_for_new(arch) if later else _for_old(arch),
    )


def _torch_finding(arch: Arch, release: TorchRelease | None) -> Finding | None:
    if release is None or serves(release, arch.capability):
        return None
    later = any(capability(row.release) > capability(release.release) for row in serving(arch.capability))
    return Finding(
        level="error",
        code="torch_has_no_code",
        message=f"torch {release.release} with CUDA {release.cuda} holds no code for {_named(arch)}",
        fix=_for_new(arch) if later else _for_old(arch),
    )


def _compilers(arch: Arch) -> list[str]:
    return [version for version, archs in nvcc_versions().items() if arch.capability in archs]


def _for_old(arch: Arch) -> str:
    """The last pair of torch and CUDA that serves a GPU which newer ones have dropped."""
    rows = serving(arch.capability)
    if rows:
        return (
            f"torch {rows[-1].release} with CUDA {rows[-1].cuda} is the last on PyPI that serves it, nvcc "
            f"{_compilers(arch)[-1]} the last that compiles for it"
        )
    if arch.capability in tegra():
        return "build on the board itself, with the torch that NVIDIA makes for it"
    return f"leave it out: no torch on PyPI since {torch_releases()[0].release} holds code for it"


def _for_new(arch: Arch) -> str:
    """The first pair of torch and CUDA that serves a GPU which older ones do not know yet."""
    rows, compilers = serving(arch.capability), _compilers(arch)
    words = [f"nvcc {compilers[0]} is the first that compiles for it"] if compilers else []
    if rows:
        words.append(f"torch {rows[0].release} with CUDA {rows[0].cuda} the first on PyPI that serves it")
    return ", ".join(words)


def _named(arch: Arch) -> str:
    """The capability with GPUs that have it: "7.0 (Tesla V100, Tesla V100S, …)"."""
    names = product_lines(arch.capability)
    shown = [*names[:2], "…"] if len(names) > 2 else names
    return f"{arch.name} ({', '.join(shown)})" if names else arch.name


def _unknown_torch(version: str, cuda: str) -> Finding:
    return Finding(
        level="info",
        code="torch_unknown",
        message=f"which GPUs torch {version} with CUDA {cuda} holds code for is not known and was not checked",
    )


def _bf16_lost(archs: Sequence[Arch]) -> Finding:
    old, new = split_archs(archs)
    return Finding(
        level="warning",
        code="bf16_switched_off",
        message=(
            f"with {', '.join(a.name for a in old)} in one wheel DeepSpeed compiles its quantizer and inference "
            f"operations without BF16 for {', '.join(a.name for a in new)} too"
        ),
        fix="--split builds two wheels",
    )
