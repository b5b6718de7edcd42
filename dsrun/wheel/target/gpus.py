"""What a wheel is built for: the GPUs here, those of the cluster, a list, or no GPU at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from dsrun.errors import ToolError, UsageError
from dsrun.hardware.gpus import lookup
from dsrun.hardware.gres import Gres
from dsrun.system.gpus import Gpu
from dsrun.wheel.target.arch import Arch, Archs, parse_archs, union

CHOICES = 'give --arch a100,h100 (GPU names or "8.0;9.0"), --arch slurm on a cluster, or --arch cpu'
_CUDA_TORCH = "install a CUDA build of torch, or give --arch cpu for the CPU operations"

Ask = Callable[[str | None], Sequence[Gres] | None]


@dataclass(frozen=True, kw_only=True)
class Target:
    """CPU operations, or CUDA ones for `archs`; `origin` tells the user where that comes from."""

    kind: Literal["cuda", "cpu"]
    archs: Archs = ()
    origin: str


def decide_target(
    arch: str, *, torch_cuda: str | None, gpus: Sequence[Gpu], gres: Ask, partition: str | None
) -> Target:
    """The target that `--arch` means here.

    `auto` takes the GPUs of this machine, else those of the SLURM cluster, else, when torch is a CPU build
    (`torch_cuda` None), the CPU operations. `gres` asks SLURM for the GPUs of a partition, or of all. Raises
    UsageError when a GPU's kind is not known for certain, when there is none to be seen, and when torch cannot
    build for what was found.
    """
    word = arch.strip().lower()
    if partition is not None and word not in ("auto", "slurm"):
        raise UsageError(
            f"--partition {partition} does not go with --arch {arch}", fix="leave one of them out"
        )
    if word == "cpu":
        return Target(kind="cpu", origin="the CPU operations, as asked for")
    if word == "slurm" or partition is not None:
        return _of_cluster(gres(partition), torch_cuda, partition)
    if word == "auto":
        return _automatic(torch_cuda, gpus, gres)
    return _checked(Target(kind="cuda", archs=parse_archs(arch), origin=f"--arch {arch}"), torch_cuda)


def _checked(target: Target, torch_cuda: str | None) -> Target:
    if torch_cuda is None:
        raise _cpu_torch(target.origin)
    return target


def _cpu_torch(wanted: str) -> UsageError:
    return UsageError(f"torch is a CPU build and cannot build CUDA code for {wanted}", fix=_CUDA_TORCH)


def _automatic(torch_cuda: str | None, gpus: Sequence[Gpu], gres: Ask) -> Target:
    if gpus:
        return _checked(_of_machine(gpus), torch_cuda)
    try:
        found = gres(None)
        silence = ""
    except ToolError as error:
        found, silence = None, f", and SLURM was asked in vain: {error.message}"
    if found:
        return _of_cluster(found, torch_cuda, None)
    if torch_cuda is None:
        return _no_gpu(silence)
    raise UsageError(f"torch is built for CUDA {torch_cuda}, but there is no GPU here{silence}", fix=CHOICES)


def _no_gpu(why: str) -> Target:
    return Target(
        kind="cpu", origin=f"the CPU operations: torch is a CPU build and no GPU is to be seen{why}"
    )


def _of_machine(gpus: Sequence[Gpu]) -> Target:
    counts = Counter(gpu.name for gpu in gpus)
    origin = ", ".join(f"{count} × {name}" for name, count in counts.items())
    return Target(kind="cuda", archs=union(_arch(gpu) for gpu in gpus), origin=f"the GPUs here: {origin}")


def _arch(gpu: Gpu) -> Arch:
    """The driver knows best; an old one does not tell, and the table may."""
    if gpu.capability:
        return Arch(*gpu.capability)
    model = lookup(gpu.name)
    if model is None:
        raise UsageError(
            f"the driver does not tell the compute capability of this {gpu.name!r}, and no GPU of that name is "
            "known",
            fix="give it: --arch 8.0",
        )
    return Arch(*model.capability)


def _of_cluster(found: Sequence[Gres] | None, torch_cuda: str | None, partition: str | None) -> Target:
    if found is None:
        raise UsageError("there is no SLURM cluster here: sinfo is missing or knows of none", fix=CHOICES)
    where = f"partition {partition}" if partition else "the cluster"
    if not found:
        if torch_cuda is None:
            return _no_gpu(f" in {where}")
        raise UsageError(f"SLURM knows of no GPU in {where}", fix=CHOICES)
    known = f"the GPUs of {where}: {', '.join(str(gpus) for gpus in found)}"
    if torch_cuda is None:
        raise _cpu_torch(known)
    unclear = [str(gpus) for gpus in found if gpus.capability is None]
    if unclear:
        raise UsageError(
            f"SLURM's names do not tell which GPUs {where} has: {', '.join(unclear)}",
            fix='name all its GPUs: --arch a100,h100 or "8.0;9.0"',
        )
    archs = union(Arch(*gpus.capability) for gpus in found if gpus.capability)
    return Target(kind="cuda", archs=archs, origin=known)
