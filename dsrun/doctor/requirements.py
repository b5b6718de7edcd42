"""--min-gpus and --min-gpu-memory: what a job needs of every node."""

from __future__ import annotations

from collections.abc import Iterator

from dsrun.doctor.machine import Machine
from dsrun.findings import Finding
from dsrun.system.display import counted
from dsrun.system.gpus import Gpu

GIB = 2**30


def check_requirements(machine: Machine, min_gpus: int | None, min_gpu_memory_gib: float | None) -> list[Finding]:
    """An error if fewer than `min_gpus` GPUs are visible here, and one for each GPU with less memory."""
    gpus = machine.gpus
    found = list(_too_few(gpus, min_gpus))
    for gpu in gpus:
        if min_gpu_memory_gib is not None and gpu.memory_total is not None:
            gib = gpu.memory_total / GIB
            if gib < min_gpu_memory_gib:
                message = f"GPU {gpu.index} ({gpu.name}) has {gib:.1f} GiB of memory, {min_gpu_memory_gib:g} required"
                found.append(Finding(level="error", code="requirements_memory", message=message))
    if not found:
        message = f"{counted(len(gpus), 'visible GPU')}, as required"
        found.append(Finding(level="info", code="requirements", message=message))
    return found


def _too_few(gpus: list[Gpu], wanted: int | None) -> Iterator[Finding]:
    if wanted is not None and len(gpus) < wanted:
        message = f"{len(gpus)} GPU{' is' if len(gpus) == 1 else 's are'} visible, {wanted} required"
        yield Finding(level="error", code="requirements_gpus", message=message, fix="run on another node")
