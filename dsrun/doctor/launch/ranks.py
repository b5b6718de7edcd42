"""Ranks against visible GPUs, CUDA_VISIBLE_DEVICES, and the GPUs that --min-gpus and --min-gpu-memory ask for."""

from collections.abc import Iterator

from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.errors import DsrunError
from dsrun.findings.finding import Finding
from dsrun.findings.texts import finding_of
from dsrun.launch.training_job import decide
from dsrun.machine.torch_gpus import NO_DEVICES
from dsrun.system.host import cores
from dsrun.system.terminal.display import counted

VISIBLE = "CUDA_VISIBLE_DEVICES"
GIB = 2**30


def look(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
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
        yield Finding(level="error", code="ranks", message=error.message, fix=error.fix or "")
        return
    if problem:
        return
    ranks = counted(topology.workers, "rank")
    if every and not seen:
        yield finding_of("ranks_hidden", count=len(every), variable=VISIBLE)
    elif topology.device == "cuda":
        yield finding_of("ranks", ranks=ranks, count=len(seen))
    else:
        yield finding_of("ranks.cpu", ranks=ranks)


def _hidden(value: str, every: int, seen: int) -> Finding | None:
    if not value.strip():
        return finding_of("ranks_hidden.empty", variable=VISIBLE, count=every)
    if value.strip() in NO_DEVICES:
        return finding_of("ranks_hidden.value", variable=VISIBLE, value=value, count=every)
    named = len([entry for entry in value.split(",") if entry.strip()])
    if seen < named:
        return finding_of(
            "ranks_visible", variable=VISIBLE, value=value, count=named, seen=seen, every=every, last=every - 1
        )
    return None


def check_requirements(machine: MachineFacts, min_gpus: int | None, min_gpu_memory_gib: float | None) -> list[Finding]:
    """An error if fewer than `min_gpus` GPUs are visible here, and one for each GPU with less memory."""
    gpus = machine.gpus
    found = []
    if min_gpus is not None and len(gpus) < min_gpus:
        key = "requirements_gpus.one" if len(gpus) == 1 else "requirements_gpus"
        found.append(finding_of(key, count=len(gpus), wanted=min_gpus))
    for gpu in gpus:
        if min_gpu_memory_gib is not None and gpu.memory_total is not None:
            gib, wanted = gpu.memory_total / GIB, min_gpu_memory_gib
            if gib < wanted:
                found.append(finding_of("requirements_memory", index=gpu.index, name=gpu.name, gib=gib, wanted=wanted))
    return found or [finding_of("requirements", gpus=counted(len(gpus), "visible GPU"))]
