"""What the system lets a process have: shared memory, locked memory, open files, processes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import inf

from dsrun.doctor.check import Check, failure, fine, warning
from dsrun.doctor.gpu.presence import usable
from dsrun.doctor.host.infiniband import active_ports
from dsrun.doctor.machine import Machine, Target
from dsrun.findings.finding import Finding
from dsrun.messages import Message, joined
from dsrun.system.display import counted
from dsrun.system.host import cgroups

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


def limit(machine: Machine, name: str) -> tuple[float, float] | None:
    """The soft and the hard limit called `name` in /proc/self/limits ("Max open files"), inf for none."""
    for found in _LIMIT.finditer(machine.text("/proc/self/limits") or ""):
        if found["name"] == name:
            soft, hard = (inf if word == "unlimited" else float(word) for word in (found["soft"], found["hard"]))
            return soft, hard
    return None


def ranks_of(machine: Machine, target: Target) -> int:
    """Ranks that will run here: as many as were asked for, or one a GPU, at least one."""
    return target.nproc or len(usable(machine)) or 1


def _shm(machine: Machine, target: Target) -> Iterator[Finding]:
    folder = machine.path("/dev/shm")
    if not folder.is_dir():
        yield failure(
            "shm_missing",
            Message("/dev/shm is missing: data loaders and NCCL cannot share memory"),
            Message("sudo mount -t tmpfs tmpfs /dev/shm; in a container docker run --shm-size=8g, or --ipc=host"),
        )
        return
    state = machine.statvfs(folder)
    total, free = state.f_frsize * state.f_blocks, state.f_frsize * state.f_bavail
    ranks = ranks_of(machine, target)
    wanted = SHM_OF_RANK * ranks
    if free < LEAST_SHM:
        yield Finding(
            level="error" if ranks > 1 and usable(machine) else "warning",
            code="shm_small",
            message=Message(
                "/dev/shm has {free:.0f} MiB free: data loaders end with a bus error, and NCCL fails", free=free / MIB
            ),
            fix=_more_shm(total, free, wanted),
        )
    elif free < wanted:
        message = Message(
            "/dev/shm has {free:.1f} of {total:.1f} GiB free, {wanted:.0f} GiB would be safe for {ranks}",
            free=free / GIB,
            total=total / GIB,
            wanted=wanted / GIB,
            ranks=counted(ranks, "rank"),
        )
        yield warning("shm_small", message, _more_shm(total, free, wanted))
    else:
        yield fine(
            "shm", Message("/dev/shm has {free:.1f} of {total:.1f} GiB free", free=free / GIB, total=total / GIB)
        )


def _more_shm(total: int, free: int, wanted: int) -> str:
    if total >= 2 * max(free, wanted):
        return Message("remove what ended jobs left: ls -lS /dev/shm")
    size = f"{max(8, round(wanted / GIB))}g"
    return Message(
        "docker run --shm-size={size}, or --ipc=host; elsewhere sudo mount -o remount,size={size} /dev/shm", size=size
    )


def _memlock(machine: Machine, target: Target) -> Iterator[Finding]:
    found = limit(machine, "Max locked memory")
    needs = [f"InfiniBand ({active_ports(machine)[0].name})"] if active_ports(machine) else []
    if target.recipe and target.recipe.spec.offload == "nvme":
        needs.append("--offload nvme")
    if found is None or not needs:
        return
    soft, hard = found
    if soft == inf:
        yield fine("memlock", Message("locked memory is not limited"))
        return
    yield Finding(
        level="error" if soft < GIB else "warning",
        code="memlock_limited",
        message=Message(
            "locked memory is limited to {soft:.3g} MiB, and {needs} locks its buffers",
            soft=soft / MIB,
            needs=joined(" and ", needs),
        ),
        fix="ulimit -l unlimited"
        if hard == inf
        else Message(
            "two lines in /etc/security/limits.conf, * soft memlock unlimited and * hard memlock "
            "unlimited; SLURM: LimitMEMLOCK=infinity for slurmd and "
            "PropagateResourceLimitsExcept=MEMLOCK; docker run --ulimit memlock=-1"
        ),
    )


def _files(machine: Machine, target: Target) -> Iterator[Finding]:
    found = limit(machine, "Max open files")
    if found is None:
        return
    soft, hard = found
    if soft < FILES:
        fix = f"ulimit -n {int(min(hard, 65536))}"
        if hard < FILES:
            fix = Message("a line * hard nofile 65536 in /etc/security/limits.conf; docker run --ulimit nofile=65536")
        message = Message(
            "{soft} open files are allowed: data loaders and many peers need more (too many open files)", soft=int(soft)
        )
        yield warning("nofile_small", message, fix)
    else:
        yield fine("nofile", Message("{soft:.10g} open files are allowed", soft=soft))


def _tasks(machine: Machine, target: Target) -> Iterator[Finding]:
    """Threads count as processes, for the user's limit as for that of the cgroup."""
    wanted = TASKS_OF_RANK * ranks_of(machine, target)
    found = limit(machine, "Max processes")
    allowed = found[0] if found else inf
    place, fix = (
        Message("this user"),
        Message("ulimit -u unlimited, or a line * - nproc unlimited in /etc/security/limits.conf"),
    )
    left, name = _pids_left(machine)
    if left < allowed:
        allowed = left
        place, fix = (
            Message("the cgroup {name}", name=name),
            Message("docker run --pids-limit=-1; systemd: TasksMax=infinity"),
        )
    if allowed < wanted:
        message = Message(
            "{place} may have {allowed:.10g} more processes and threads; {wanted} would be safe",
            place=place,
            allowed=allowed,
            wanted=wanted,
        )
        yield warning("nproc_small", message, fix)
    elif found:
        yield fine("nproc", Message("enough processes and threads are allowed"))


def _pids_left(machine: Machine) -> tuple[float, str]:
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


SHM = Check(
    "shm",
    "/dev/shm",
    _shm,
    finds="shared memory that is missing, full, or too small for data loaders and NCCL, as in a container",
)
MEMLOCK = Check(
    "memlock",
    "locked memory",
    _memlock,
    needs="needs InfiniBand, or --offload nvme",
    finds="a limit of locked memory, which InfiniBand and NVMe offload run into",
)
NOFILE = Check("nofile", "open files", _files, finds="a limit of open files that data loaders run into")
NPROC = Check(
    "nproc", "processes and threads", _tasks, finds="limits of processes and threads, of the user and of the cgroup"
)
CHECKS = (SHM, MEMLOCK, NOFILE, NPROC)
