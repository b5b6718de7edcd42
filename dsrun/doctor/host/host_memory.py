"""Host memory, within the limit of a container or batch job, against what the job keeps there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dsrun.doctor.check import Check, failure, fine, warning
from dsrun.doctor.gpu.presence import usable
from dsrun.doctor.job.plan import Needs, needs
from dsrun.doctor.machine import Machine, Target
from dsrun.findings.finding import Finding
from dsrun.messages import Message, joined
from dsrun.system.files import nearest_existing
from dsrun.system.host import memory_available, memory_total

GIB = 2**30
MORE_MEMORY = Message("request more: srun --mem=0 takes all of a node's, docker run without --memory")


def _memory(machine: Machine, target: Target) -> Iterator[Finding]:
    # The memory of a login node says nothing about the machine that will train.
    elsewhere = not usable(machine) or (target.nodes and not machine.environ.get("SLURM_JOB_ID"))
    planned = None if elsewhere else needs(machine, target)
    if planned is None or target.recipe is None:
        return
    total, free = memory_total(machine.root), memory_available(machine.root)
    offload = target.recipe.spec.offload
    wanted = max(planned.host, planned.host_loading)
    if planned.host_loading > planned.host:
        what = Message("loading the model needs {wanted:.0f} GiB of host memory per node", wanted=wanted / GIB)
        less = Message("--zero 3 loads it once a node")
    else:
        what = Message(
            "training needs {wanted:.0f} GiB of host memory per node"
            if offload == "none"
            else "training needs {wanted:.0f} GiB of host memory per node (--offload {offload})",
            wanted=wanted / GIB,
            offload=offload,
        )
        less = Message("--offload none or more nodes need less")
    if wanted > total:
        machines = _machines(machine)
        yield failure(
            "host_memory_small",
            Message(
                "{what}, {total:.0f} GiB is all there is: the limit of the container or job, the machine has "
                "{machine:.0f} GiB"
                if machines > total
                else "{what}, {total:.0f} GiB is all there is",
                what=what,
                total=total / GIB,
                machine=machines / GIB,
            ),
            joined("; ", [MORE_MEMORY, less]),
        )
    elif wanted > free:
        yield warning(
            "host_memory_used",
            Message("{what}, {free:.0f} of {total:.0f} GiB are free", what=what, free=free / GIB, total=total / GIB),
            Message("end what uses it: ps aux --sort=-rss | head"),
        )
    else:
        yield fine("host_memory", Message("{what}, {free:.0f} GiB are free", what=what, free=free / GIB))
    yield from _nvme(machine, target, planned)


def _machines(machine: Machine) -> int:
    """The bytes of the machine, of which a cgroup may leave less; 0 where the kernel does not say."""
    for line in (machine.text("/proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def _nvme(machine: Machine, target: Target, planned: Needs) -> Iterator[Finding]:
    """The folder of --offload nvme has to hold the states of all ranks of this node."""
    path = target.recipe.spec.nvme_path if target.recipe else None
    if not planned.nvme or not path:
        return
    state = machine.statvfs(nearest_existing(target.cwd / Path(path).expanduser()))
    free = state.f_frsize * state.f_bavail
    if free < planned.nvme:
        yield failure(
            "host_memory_nvme",
            Message(
                "--nvme-path {path}: {free:.0f} GiB are free, the job writes {nvme:.0f} GiB",
                path=path,
                free=free / GIB,
                nvme=planned.nvme / GIB,
            ),
            Message("choose a larger drive, or more nodes"),
        )


HOST_MEMORY = Check(
    "host_memory",
    "host memory",
    _memory,
    needs="needs a GPU, and a job whose model is known",
    finds="less host memory than the job's offload plan takes, or loading its model; a full drive of --offload nvme",
)
CHECKS = (HOST_MEMORY,)
