"""What the system lets a process have: shared memory, locked memory, open files, processes."""

import re
from collections.abc import Iterator
from math import inf

from dsrun.doctor.gpu.presence import usable
from dsrun.doctor.host.infiniband import active_ports
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.findings.conditions import first_where
from dsrun.findings.finding import Finding
from dsrun.findings.texts import finding_of
from dsrun.messages import joined
from dsrun.system.host import cgroups
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
