"""Cores and threads of each rank, and whether they are near its GPU."""

from collections.abc import Iterator
from typing import Any

from dsrun.doctor.gpu.presence import usable
from dsrun.doctor.host.limits import ranks_of
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.findings.conditions import findings_where
from dsrun.findings.finding import Finding
from dsrun.findings.texts import finding_of
from dsrun.system.host import cpu_quota
from dsrun.system.terminal.display import counted

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


def allowed_cpus(machine: MachineFacts) -> frozenset[int]:
    """The cores that this process may run on: its affinity mask within its cpuset."""
    for line in (machine.text("/proc/self/status") or "").splitlines():
        name, _, value = line.partition(":")
        if name == "Cpus_allowed_list":
            return cpu_list(value)
    return frozenset()


def look_at_cores(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    cpus = len(allowed_cpus(machine))
    if not cpus:
        return
    quota = cpu_quota(machine.root)
    cpus = cpus if quota is None else max(1, min(cpus, int(quota)))
    ranks = ranks_of(machine, target)
    spec = target.recipe.spec if target.recipe else None
    adam = bool(spec and spec.offload in ("cpu", "optimizer"))
    text = machine.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    names: dict[str, Any] = {
        "text": text,
        "threads_of_rank": int(text) if text.isdigit() else 0,
        "cpus": cpus,
        "ranks": ranks,
    }
    names |= {"adam": adam, "wanted": CORES_TO_OFFLOAD if adam else CORES_OF_RANK, "gpus": usable(machine)}
    held, shared = counted(cpus, "core"), counted(ranks, "rank")
    problems = list(findings_where(__file__, "cores", held=held, shared=shared, **names))
    yield from problems or [finding_of("cores", cores=held, ranks=shared)]


def look_at_numa(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
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
        yield finding_of("numa_far", node=node, indices=", ".join(map(str, indices)))
    if homes and not far:
        yield finding_of("numa")
