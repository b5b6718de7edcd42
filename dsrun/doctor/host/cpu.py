"""Cores and threads of each rank, and whether they are near its GPU."""

from __future__ import annotations

from collections.abc import Iterator

from dsrun.doctor.check import Check, fine, warning
from dsrun.doctor.gpu.presence import usable
from dsrun.doctor.host.limits import ranks_of
from dsrun.doctor.machine import Machine, Target
from dsrun.findings.finding import Finding
from dsrun.messages import Message
from dsrun.system.display import counted
from dsrun.system.host import cpu_quota

CORES_OF_RANK = 2
"""Below it the training process, NCCL's threads and the data loaders of a GPU wait for one another."""
CORES_TO_OFFLOAD = 4
"""Adam on the CPU runs on all cores of a rank: with one or two it takes longer than the GPU's part of a step."""


def cpu_list(text: str) -> frozenset[int]:
    """The numbers of a list as the kernel writes it: "0-3,8" is 0, 1, 2, 3 and 8."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit():
            found |= set(range(int(first), int(last or first) + 1))
    return frozenset(found)


def allowed_cpus(machine: Machine) -> frozenset[int]:
    """The cores that this process may run on: its affinity mask within its cpuset."""
    for line in (machine.text("/proc/self/status") or "").splitlines():
        name, _, value = line.partition(":")
        if name == "Cpus_allowed_list":
            return cpu_list(value)
    return frozenset()


def _cores(machine: Machine, target: Target) -> Iterator[Finding]:
    cpus = len(allowed_cpus(machine))
    if not cpus:
        return
    quota = cpu_quota(machine.root)
    cpus = cpus if quota is None else max(1, min(cpus, int(quota)))
    ranks = ranks_of(machine, target)
    share = cpus // ranks
    spec = target.recipe.spec if target.recipe else None
    wanted = CORES_TO_OFFLOAD if spec and spec.offload in ("cpu", "optimizer") else CORES_OF_RANK
    problems = list(_threads(machine, cpus, ranks))
    if usable(machine) and share < wanted:
        why = (
            Message("Adam on the CPU needs more")
            if wanted == CORES_TO_OFFLOAD
            else Message("data loaders will hold the GPUs up")
        )
        problems.append(
            warning(
                "cores_few",
                Message(
                    "{cores} for {ranks}: {why}", cores=counted(cpus, "core"), ranks=counted(ranks, "rank"), why=why
                ),
                Message("request more: srun --cpus-per-gpu={wanted}, docker run without --cpus", wanted=wanted),
            )
        )
    yield from problems
    if not problems:
        yield fine("cores", Message("{cores} for {ranks}", cores=counted(cpus, "core"), ranks=counted(ranks, "rank")))


def _threads(machine: Machine, cpus: int, ranks: int) -> Iterator[Finding]:
    """OMP_NUM_THREADS, which dsrun sets where it is not set: a value of the environment stays."""
    text = machine.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if not text:
        return
    share = max(1, cpus // ranks)
    if not text.isdigit() or int(text) < 1:
        yield warning(
            "cores_threads",
            Message("OMP_NUM_THREADS={text} is not a number of threads", text=text),
            "unset OMP_NUM_THREADS",
        )
    elif int(text) * ranks > cpus:
        message = Message(
            "OMP_NUM_THREADS={text} makes {threads} threads, and there are {cores}",
            text=text,
            threads=int(text) * ranks,
            cores=counted(cpus, "core"),
        )
        yield warning(
            "cores_threads", message, Message("unset OMP_NUM_THREADS, or export OMP_NUM_THREADS={share}", share=share)
        )


def _numa(machine: Machine, target: Target) -> Iterator[Finding]:
    nodes = {
        int(each.name[4:]): cpu_list(machine.text(f"/sys/devices/system/node/{each.name}/cpulist") or "")
        for each in machine.path("/sys/devices/system/node").glob("node*")
        if each.name[4:].isdigit()
    }
    gpus = usable(machine)
    mine = allowed_cpus(machine)
    if len([each for each in nodes.values() if each]) < 2 or not gpus or not mine:
        return
    homes: dict[int, list[int]] = {}
    for gpu in gpus:
        text = machine.text(f"/sys/bus/pci/devices/{gpu.bus}/numa_node") or "-1"
        if text.isdigit():  # -1: the firmware does not say
            homes.setdefault(int(text), []).append(gpu.index)
    far = {node: indices for node, indices in homes.items() if node in nodes and not nodes[node] & mine}
    for node, indices in sorted(far.items()):
        names = ", ".join(str(index) for index in indices)
        yield warning(
            "numa_far",
            Message(
                "NUMA node {node} has GPU {indices}, and none of the cores that this process may use: copies "
                "cross sockets",
                node=node,
                indices=names,
            ),
            Message(
                "srun --gpu-bind=closest, or cores of that node: numactl --cpunodebind={node} (nvidia-smi "
                "topo -m shows which); docker run without --cpuset-cpus",
                node=node,
            ),
        )
    if homes and not far:
        yield fine("numa", Message("each GPU has cores of its own NUMA node"))


CORES = Check(
    "cores",
    "cores and threads of each rank",
    _cores,
    finds="fewer cores than ranks, data loaders or Adam on the CPU need; OMP_NUM_THREADS with more threads than cores",
)
NUMA = Check(
    "numa",
    "NUMA nodes of GPUs and cores",
    _numa,
    needs="needs GPUs and several NUMA nodes",
    finds="GPUs on a NUMA node of whose cores this process may use none",
)
CHECKS = (CORES, NUMA)
