"""What the system lets a process have: shared memory, locked memory, open files, processes."""

import re
from collections.abc import Iterator
from math import inf

from dsrun.doctor.gpu.presence import usable
from dsrun.doctor.host.infiniband import active_ports
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.findings.finding import Finding, Level
from dsrun.findings.texts import finding_of, text_of
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
    size = f"{max(8, round(wanted / GIB))}g"
    full = total >= 2 * max(free, wanted)
    fix = text_of("shm_small.remove") if full else text_of("shm_small.enlarge", size=size)
    if free < LEAST_SHM:
        level: Level = "error" if ranks > 1 and usable(machine) else "warning"
        yield finding_of("shm_small.fails", free=free / MIB, level=level, fix=fix)
    elif free < wanted:
        shared = counted(ranks, "rank")
        yield finding_of(
            "shm_small.tight", free=free / GIB, total=total / GIB, wanted=wanted / GIB, ranks=shared, fix=fix
        )
    else:
        yield finding_of("shm", free=free / GIB, total=total / GIB)


def look_at_memlock(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    found = limit(machine, "Max locked memory")
    needs = [f"InfiniBand ({active_ports(machine)[0].name})"] if active_ports(machine) else []
    if target.recipe and target.recipe.spec.offload == "nvme":
        needs.append("--offload nvme")
    if found is None or not needs:
        return
    soft, hard = found
    if soft == inf:
        yield finding_of("memlock")
        return
    yield finding_of(
        "memlock_limited",
        soft=soft / MIB,
        needs=joined(" and ", needs),
        level="error" if soft < GIB else "warning",
        fix=text_of("memlock_limited.by_user") if hard == inf else None,
    )


def look_at_files(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    found = limit(machine, "Max open files")
    if found is None:
        return
    soft, hard = found
    if soft < FILES:
        fix = None if hard < FILES else f"ulimit -n {int(min(hard, 65536))}"
        yield finding_of("nofile_small", soft=int(soft), fix=fix)
    else:
        yield finding_of("nofile", soft=soft)


def look_at_tasks(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """Threads count as processes, for the user's limit as for that of the cgroup."""
    wanted = TASKS_OF_RANK * ranks_of(machine, target)
    found = limit(machine, "Max processes")
    allowed = found[0] if found else inf
    place, fix = text_of("nproc_small.user"), text_of("nproc_small.more_for_user")
    left, name = _pids_left(machine)
    if left < allowed:
        allowed = left
        place, fix = text_of("nproc_small.cgroup", name=name), text_of("nproc_small.more_for_cgroup")
    if allowed < wanted:
        yield finding_of("nproc_small", place=place, allowed=allowed, wanted=wanted, fix=fix)
    elif found:
        yield finding_of("nproc")


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
