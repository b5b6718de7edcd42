"""What the system lets a process have (shared and locked memory, open files, processes), cores and threads of each
rank, and whether they are near its GPU."""

import re
from collections.abc import Iterator
from math import inf
from typing import Any

from dsrun.doctor.gpu.presence import usable
from dsrun.doctor.host.infiniband import active_ports
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.findings.finding import Finding, finding_of, findings_where, first_where
from dsrun.messages import joined
from dsrun.system.host import cgroups, cpu_quota
from dsrun.system.terminal.display import counted

MIB = 2**20
GIB = 2**30
LEAST_SHM = 256 * MIB
"""Below it dsrun starts no data loader processes; a container of Docker has 64 MiB (`docker run --shm-size`)."""
SHM_OF_RANK = GIB
"""Shared memory that a rank should have: batches that wait in a queue, and NCCL's buffers between GPUs without peer
access. NCCL's troubleshooting page, "Shared memory", asks for 1 GiB."""
FILES = 4096
"""Open files of a rank: torch's data loaders pass every tensor of a batch by a file descriptor (torch.multiprocessing,
"File descriptor - file_descriptor"), and NCCL has a socket per peer and channel."""
TASKS_OF_RANK = 512
"""Threads and processes of a rank, generously: its own threads for each core, NCCL's, and data loader processes."""

_LIMIT = re.compile(r"^(?P<name>Max [a-z ]+?)\s{2,}(?P<soft>\S+)\s+(?P<hard>\S+)", re.MULTILINE)


def limit(machine: MachineFacts, name: str) -> tuple[float, float] | None:
    """The soft and the hard limit called `name` in /proc/self/limits ("Max open files"), inf for none."""
    for found in _LIMIT.finditer(machine.text("/proc/self/limits") or ""):
        if found["name"] == name:
            soft, hard = (inf if word == "unlimited" else float(word) for word in (found["soft"], found["hard"]))
            return soft, hard
    return None


def ranks_of(machine: MachineFacts, target: DoctorTarget) -> int:
    """Ranks that will run here: as many as were asked for, or one a GPU, at least one."""
    return target.nproc or len(usable(machine)) or 1


def look_at_shm(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    folder = machine.path("/dev/shm")
    if not folder.is_dir():
        yield finding_of("shm_missing")
        return
    state = machine.statvfs(folder)
    total, free = state.f_frsize * state.f_blocks, state.f_frsize * state.f_bavail
    ranks = ranks_of(machine, target)
    wanted = SHM_OF_RANK * ranks
    names = {"ranks": ranks, "shared": counted(ranks, "rank"), "gpus": usable(machine), "LEAST_SHM": LEAST_SHM}
    size = f"{max(8, round(wanted / GIB))}g"
    yield from first_where(__file__, "shm", free=free, total=total, wanted=wanted, size=size, **names)


def look_at_memlock(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    found = limit(machine, "Max locked memory")
    needs = [f"InfiniBand ({active_ports(machine)[0].name})"] if active_ports(machine) else []
    if target.recipe and target.recipe.spec.offload == "nvme":
        needs.append("--offload nvme")
    if found and needs:
        yield from first_where(__file__, "memlock", soft=found[0], hard=found[1], needs=joined(" and ", needs), inf=inf)


def look_at_files(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    if found := limit(machine, "Max open files"):
        yield from first_where(__file__, "nofile", soft=found[0], hard=found[1], FILES=FILES)


def look_at_tasks(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """Threads count as processes, for the user's limit as for that of the cgroup."""
    found = limit(machine, "Max processes")
    left, name = _pids_left(machine)
    names = {"found": found, "allowed": found[0] if found else inf, "left": left, "name": name}
    yield from first_where(__file__, "tasks", wanted=TASKS_OF_RANK * ranks_of(machine, target), **names)


def _pids_left(machine: MachineFacts) -> tuple[float, str]:
    """The least that a cgroup above this process leaves (pids.max - pids.current), and its name."""
    least, name = inf, ""
    for folder in cgroups(machine.root, "pids"):
        try:
            most = (folder / "pids.max").read_text().strip()
            now = int((folder / "pids.current").read_text())
        except (OSError, ValueError):
            continue
        if most.isdigit() and int(most) - now < least:
            least, name = int(most) - now, folder.name
    return least, name


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
