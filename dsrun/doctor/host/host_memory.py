"""Host memory, within the limit of a container or batch job, against what the job keeps there."""

from collections.abc import Iterator
from pathlib import Path

from dsrun.doctor.gpu.presence import usable
from dsrun.doctor.job.memory_plan import MemoryNeeds, needs
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.findings.finding import Finding
from dsrun.findings.texts import finding_of, text_of
from dsrun.messages import joined
from dsrun.system.files import nearest_existing
from dsrun.system.host import memory_available, memory_total

GIB = 2**30


def look(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    # The memory of a login node says nothing about the machine that will train.
    elsewhere = not usable(machine) or (target.nodes and not machine.environ.get("SLURM_JOB_ID"))
    planned = None if elsewhere else needs(machine, target)
    if planned is None or target.recipe is None:
        return
    total, free = memory_total(machine.root), memory_available(machine.root)
    offload = target.recipe.spec.offload
    wanted = max(planned.host, planned.host_loading)
    if planned.host_loading > planned.host:
        what, less = text_of("host_memory.loading", wanted=wanted / GIB), text_of("host_memory.load_once")
    else:
        key = "host_memory.training" if offload == "none" else "host_memory.offloading"
        what, less = text_of(key, wanted=wanted / GIB, offload=offload), text_of("host_memory.no_offload")
    if wanted > total:
        machines = _machines(machine)
        key = "host_memory_small.limited" if machines > total else "host_memory_small.all"
        fix = joined("; ", [text_of("host_memory_small.more"), less])
        yield finding_of(key, what=what, total=total / GIB, machine=machines / GIB, fix=fix)
    elif wanted > free:
        yield finding_of("host_memory_used", what=what, free=free / GIB, total=total / GIB)
    else:
        yield finding_of("host_memory", what=what, free=free / GIB)
    yield from _nvme(machine, target, planned)


def _machines(machine: MachineFacts) -> int:
    """The bytes of the machine, of which a cgroup may leave less; 0 where the kernel does not say."""
    for line in (machine.text("/proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def _nvme(machine: MachineFacts, target: DoctorTarget, planned: MemoryNeeds) -> Iterator[Finding]:
    """The folder of --offload nvme has to hold the states of all ranks of this node."""
    path = target.recipe.spec.nvme_path if target.recipe else None
    if not planned.nvme or not path:
        return
    state = machine.statvfs(nearest_existing(target.cwd / Path(path).expanduser()))
    free = state.f_frsize * state.f_bavail
    if free < planned.nvme:
        yield finding_of("host_memory_nvme", path=path, free=free / GIB, nvme=planned.nvme / GIB)
