"""Ranks against visible GPUs, CUDA_VISIBLE_DEVICES, and the GPUs that --min-gpus and --min-gpu-memory ask for."""

from __future__ import annotations

from collections.abc import Iterator

from dsrun.doctor.check import Check, failure, fine, warning
from dsrun.doctor.machine import Machine, Target
from dsrun.errors import DsrunError
from dsrun.findings.finding import Finding
from dsrun.launch.job import decide
from dsrun.messages import Message
from dsrun.system.display import counted
from dsrun.system.gpus import Gpu
from dsrun.system.host import cores

VISIBLE = "CUDA_VISIBLE_DEVICES"
GIB = 2**30


def look(machine: Machine, target: Target) -> Iterator[Finding]:
    """What `dsrun train --nproc` refuses, and GPUs that a variable hides."""
    every = list(machine.driver.gpus) if machine.driver else []
    seen = machine.gpus
    value = machine.environ.get(VISIBLE)
    if not target.runs_on(machine):
        return
    problem = _hidden(value, len(every), len(seen)) if every and value is not None else None
    if problem:
        yield problem
    wants_cpu = bool(target.recipe and target.recipe.hf.get("use_cpu"))
    try:
        topology = decide(nproc=target.nproc, visible_gpus=len(seen), cores=cores(machine.root), use_cpu=wants_cpu)
    except DsrunError as error:
        yield failure("ranks", error.message, error.fix or "")
        return
    if every and not seen and not problem:
        yield failure(
            "ranks_hidden",
            Message("none of the {count} GPUs is visible", count=len(every)),
            f"unset {VISIBLE}",
        )
    elif not problem:
        message = Message(
            "{ranks} of {count} visible GPUs" if topology.device == "cuda" else "{ranks} on the CPU",
            ranks=counted(topology.workers, "rank"),
            count=len(seen),
        )
        yield fine("ranks", message)


def _hidden(value: str | None, every: int, seen: int) -> Finding | None:
    if not value or not value.strip() or value.strip() in ("-1", "NoDevFiles"):
        return failure(
            "ranks_hidden",
            Message(
                "{variable}={value}: none of the {count} GPUs is visible"
                if (value or "").strip()
                else "{variable} is empty: none of the {count} GPUs is visible",
                variable=VISIBLE,
                value=value,
                count=every,
            ),
            f"unset {VISIBLE}",
        )
    named = [entry for entry in value.split(",") if entry.strip()]
    if seen < len(named):
        return warning(
            "ranks_visible",
            Message(
                "{variable}={value} names {count} GPUs, and {seen} of {every} are visible: one that is not "
                "there hides those after it, and one named twice hides all",
                variable=VISIBLE,
                value=value,
                count=len(named),
                seen=seen,
                every=every,
            ),
            Message("GPUs are numbered 0 to {last} here", last=every - 1),
        )
    return None


RANKS = Check(
    "ranks",
    "ranks and visible GPUs",
    look,
    finds="more ranks than visible GPUs; CUDA_VISIBLE_DEVICES that is empty, or names GPUs that are not there",
)


def check_requirements(machine: Machine, min_gpus: int | None, min_gpu_memory_gib: float | None) -> list[Finding]:
    """An error if fewer than `min_gpus` GPUs are visible here, and one for each GPU with less memory."""
    gpus = machine.gpus
    found = list(_too_few(gpus, min_gpus))
    for gpu in gpus:
        if min_gpu_memory_gib is not None and gpu.memory_total is not None:
            gib = gpu.memory_total / GIB
            if gib < min_gpu_memory_gib:
                message = Message(
                    "GPU {index} ({name}) has {gib:.1f} GiB of memory, {wanted:g} required",
                    index=gpu.index,
                    name=gpu.name,
                    gib=gib,
                    wanted=min_gpu_memory_gib,
                )
                found.append(Finding(level="error", code="requirements_memory", message=message))
    if not found:
        message = Message("{gpus}, as required", gpus=counted(len(gpus), "visible GPU"))
        found.append(Finding(level="info", code="requirements", message=message))
    return found


def _too_few(gpus: list[Gpu], wanted: int | None) -> Iterator[Finding]:
    if wanted is not None and len(gpus) < wanted:
        message = Message(
            "{count} GPU is visible, {wanted} required"
            if len(gpus) == 1
            else "{count} GPUs are visible, {wanted} required",
            count=len(gpus),
            wanted=wanted,
        )
        yield Finding(level="error", code="requirements_gpus", message=message, fix=Message("run on another node"))
