"""What a wheel is built for: the GPUs here, those of the cluster, a list, or no GPU at all."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dsrun.errors import ToolError, UsageError
from dsrun.findings.finding import Finding, errors_in, finding_of, text_of
from dsrun.hardware.gpu_facts import gpu_table
from dsrun.hardware.gres import GpuGres
from dsrun.hardware.site import site_files
from dsrun.machine.gpus import LocalGpu
from dsrun.messages import joined
from dsrun.refusals import Refusals
from dsrun.wheel.platform.arch import (
    ComputeCapability,
    CudaArch,
    CudaArchs,
    TorchRelease,
    capability,
    env_value,
    minor_release,
    nvcc_versions,
    parse_archs,
    runs_on,
    tegra,
    torch_releases,
    union,
)

CHOICES = 'give --arch a100,h100 (GPU names or "8.0;9.0"), --arch slurm on a cluster, or --arch cpu'
_CUDA_TORCH = "install a CUDA build of torch, or give --arch cpu for the CPU operations"

ClusterQuery = Callable[[str | None], Sequence[GpuGres] | None]


@dataclass(frozen=True, kw_only=True)
class BuildTarget:
    """CPU operations, or CUDA ones for `archs`; `origin` tells the user where that comes from."""

    kind: Literal["cuda", "cpu"]
    archs: CudaArchs = ()
    origin: str


def decide_target(
    arch: str, *, torch_cuda: str | None, gpus: Sequence[LocalGpu], gres: ClusterQuery, partition: str | None
) -> BuildTarget:
    """The target that `--arch` means here.

    `auto` takes the GPUs of this machine, else those of the SLURM cluster, else, when torch is a CPU build
    (`torch_cuda` None), the CPU operations. `gres` asks SLURM for the GPUs of a partition, or of all. Raises
    UsageError when a GPU's kind is not known for certain, when there is none to be seen, and when torch cannot
    build for what was found."""
    word = arch.strip().lower()
    if partition is not None and word not in ("auto", "slurm"):
        raise UsageError(f"--partition {partition} does not go with --arch {arch}", fix="leave one of them out")
    if word == "cpu":
        return BuildTarget(kind="cpu", origin="the CPU operations, as asked for")
    if word == "slurm" or partition is not None:
        target = _of_cluster(gres(partition), torch_cuda, partition)
    elif word == "auto":
        target = _automatic(torch_cuda, gpus, gres)
    else:
        target = BuildTarget(kind="cuda", archs=parse_archs(arch), origin=f"--arch {arch}")
    if target.kind == "cuda" and torch_cuda is None:
        raise UsageError(f"torch is a CPU build and cannot build CUDA code for {target.origin}", fix=_CUDA_TORCH)
    return target


def _automatic(torch_cuda: str | None, gpus: Sequence[LocalGpu], gres: ClusterQuery) -> BuildTarget:
    if gpus:
        counts = Counter(gpu.name for gpu in gpus)
        names = ", ".join(f"{count} × {name}" for name, count in counts.items())
        archs = union(CudaArch(*gpu.capability) for gpu in gpus)
        return BuildTarget(kind="cuda", archs=archs, origin=f"the GPUs here: {names}")
    try:
        found = gres(None)
        silence = ""
    except ToolError as error:
        found, silence = None, f", and SLURM could not be queried: {error.message}"
    if found:
        return _of_cluster(found, torch_cuda, None)
    if torch_cuda is None:
        return _no_gpu(silence)
    raise UsageError(f"torch is built for CUDA {torch_cuda}, but there is no GPU here{silence}", fix=CHOICES)


def _no_gpu(why: str) -> BuildTarget:
    return BuildTarget(kind="cpu", origin=f"the CPU operations: torch is a CPU build and no GPU is visible{why}")


def _of_cluster(found: Sequence[GpuGres] | None, torch_cuda: str | None, partition: str | None) -> BuildTarget:
    if found is None:
        raise UsageError("there is no SLURM cluster here: sinfo is missing or knows of none", fix=CHOICES)
    where = f"partition {partition}" if partition else "the cluster"
    if not found:
        if torch_cuda is None:
            return _no_gpu(f" in {where}")
        raise UsageError(f"SLURM knows of no GPU in {where}", fix=CHOICES)
    known = f"the GPUs of {where}: {', '.join(str(gpus) for gpus in found)}"
    unclear = [str(gpus) for gpus in found if gpus.capability is None]
    if unclear and torch_cuda is not None:
        texts, names = Refusals(__file__, "refusals.toml"), {"where": where, "unclear": ", ".join(unclear)}
        raise texts.error("gpus.unclear", file=site_files()[0], **names)
    archs = union(CudaArch(*gpus.capability) for gpus in found if gpus.capability)
    return BuildTarget(kind="cuda", archs=archs, origin=known)


# Boards and sizes of one product: "A100 SXM4 80GB", "GeForce RTX 3060 Laptop".
_BOARD = re.compile(r" (?:PCIe|SXM\d?|NVL|\d+GB|Laptop)(?= |$)")
_SEGMENTS = ("datacenter", "superchip", "jetson", "geforce", "workstation", "titan", "geforce-laptop")
# torch's own index and PyPI label their packages so; "2.9.0a0+nv25.9" or a git hash is somebody's own build.
_RELEASED = re.compile(r"\d+\.\d+\.\d+(\+cu\d+)?")


def check_archs(
    archs: CudaArchs,
    *,
    nvcc: str | None,
    compiled: Collection[ComputeCapability] | None,
    torch_version: str,
    torch_cuda: str,
    machine: str = "x86_64",
) -> list[Finding]:
    """The findings against compiling for `archs` with this nvcc and torch; the first error names what works.

    `nvcc` "13.0" or longer and `compiled`, what it says it compiles for; None: it cannot be asked. `torch_version`
    "2.13.0+cu130", `torch_cuda` "13.0"; `machine` as `uname -m` has it. An error names what does serve the GPU. What
    build/cuda.toml does not hold (other people's builds of torch, those for Arm) is reported and not an error."""
    release = _release(torch_version, torch_cuda) if machine == "x86_64" else None
    findings: list[Finding] = []
    working: list[CudaArch] = []
    for arch in archs:
        finding = _nvcc_finding(arch, nvcc, compiled) or _torch_finding(arch, release)
        if finding:
            findings.append(finding)
        if finding is None or finding.level != "error":
            working.append(arch)
    errors = errors_in(findings)
    if errors and working:
        fix = text_of("nvcc_cannot_compile.others", fix_of_first=errors[0].fix, archs=env_value(working))
        findings[findings.index(errors[0])] = replace(errors[0], fix=fix)
    if release is None:
        findings.append(finding_of("torch_unknown", version=torch_version, cuda=torch_cuda))
    return findings


def _release(version: str, cuda: str) -> TorchRelease | None:
    """The row that describes this torch; None for other people's builds and other CUDA versions."""
    if not _RELEASED.fullmatch(version):
        return None
    wanted = minor_release(version), minor_release(cuda)
    return next((row for row in torch_releases() if (row.release, row.cuda) == wanted), None)


def serves(release: TorchRelease, wanted: ComputeCapability) -> bool:
    """Whether a GPU of capability `wanted` runs the code in this torch."""
    return any(runs_on(CudaArch(*built), wanted) for built in release.sass)


def serving(wanted: ComputeCapability) -> list[TorchRelease]:
    """The releases of torch whose code a GPU of capability `wanted` runs, oldest first."""
    return [row for row in torch_releases() if serves(row, wanted)]


def product_lines(wanted: ComputeCapability) -> list[str]:
    """The GPUs of capability `wanted`, each once whatever its memory and board, servers' first."""
    rows = [row for row in gpu_table() if row.capability == wanted]
    rows.sort(key=lambda row: _SEGMENTS.index(row.segment) if row.segment in _SEGMENTS else len(_SEGMENTS))
    return list(dict.fromkeys(_BOARD.sub("", row.name) for row in rows))


def _nvcc_finding(arch: CudaArch, nvcc: str | None, compiled: Collection[ComputeCapability] | None) -> Finding | None:
    if nvcc is None or compiled is None or arch.capability in compiled:
        return None
    version = minor_release(nvcc)
    later = any(capability(each) > capability(version) for each in _compilers(arch))
    fix = _for_new(arch) if later else _for_old(arch)
    return finding_of("nvcc_cannot_compile", version=version, arch=_named(arch), fix=fix)


def _torch_finding(arch: CudaArch, release: TorchRelease | None) -> Finding | None:
    if release is None or serves(release, arch.capability):
        return None
    later = any(capability(row.release) > capability(release.release) for row in serving(arch.capability))
    fix = _for_new(arch) if later else _for_old(arch)
    return finding_of("torch_has_no_code", release=release.release, cuda=release.cuda, arch=_named(arch), fix=fix)


def _compilers(arch: CudaArch) -> list[str]:
    return [version for version, archs in nvcc_versions().items() if arch.capability in archs]


def _for_old(arch: CudaArch) -> str:
    """The last pair of torch and CUDA that serves a GPU which newer ones have dropped."""
    rows = serving(arch.capability)
    if rows:
        last = rows[-1]
        return text_of("torch_has_no_code.last", release=last.release, cuda=last.cuda, nvcc=_compilers(arch)[-1])
    if arch.capability in tegra():
        return text_of("torch_has_no_code.board")
    return text_of("torch_has_no_code.never", first=torch_releases()[0].release)


def _for_new(arch: CudaArch) -> str:
    """The first pair of torch and CUDA that serves a GPU which older ones do not know yet."""
    rows, compilers = serving(arch.capability), _compilers(arch)
    options = [text_of("nvcc_cannot_compile.first", nvcc=compilers[0])] if compilers else []
    if rows:
        options.append(text_of("torch_has_no_code.first", release=rows[0].release, cuda=rows[0].cuda))
    return joined(", ", options)


def _named(arch: CudaArch) -> str:
    """The capability with GPUs that have it: "7.0 (Tesla V100, Tesla V100S, …)"."""
    names = product_lines(arch.capability)
    shown = [*names[:2], "…"] if len(names) > 2 else names
    return f"{arch.name} ({', '.join(shown)})" if names else arch.name
