"""What this machine offers (processor, memory, disk, versions) within the limits of a container or batch job."""

import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from dsrun.datafiles import toml_beside
from dsrun.errors import MissingError
from dsrun.messages import Message
from dsrun.system.files import nearest_existing, text_of_file

ROOT = Path("/")
# Linux writes the first two for x86, bf16 for Arm (Documentation/arch/arm64/elf_hwcaps.rst).
_BF16_FLAGS = frozenset({"amx_bf16", "avx512_bf16", "bf16"})
_GIT_TIMEOUT_S = 10
_UNLIMITED = 1 << 60  # cgroup v1 writes "no limit" as a huge number of pages

VERSIONED = (
    "dsrun", "torch", "deepspeed", "transformers", "accelerate", "datasets", "tokenizers", "peft", "safetensors",
    "numpy",
)  # fmt: skip


def hostname() -> str:
    """This machine's name, as SLURM and logs know it."""
    return socket.gethostname()


@cache
def boot_id() -> str:
    """A short name for the time since this machine started; "" where the kernel has none."""
    return text_of_file(ROOT / "proc/sys/kernel/random/boot_id")[:8]


def uptime_s() -> float:
    """Seconds since this machine started, sleep included; elsewhere than on Linux, since some time of its own."""
    return round(time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)), 3)


def cpu_flags(root: Path = ROOT) -> frozenset[str]:
    """Instruction-set flags of the first processor in /proc/cpuinfo; empty where there is none."""
    for line in text_of_file(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def cpu_bf16(root: Path = ROOT) -> bool:
    """Whether the processor computes in bfloat16 by itself (AMX-BF16, AVX512-BF16, Arm BF16)."""
    return bool(_BF16_FLAGS & cpu_flags(root))


def cores(root: Path = ROOT) -> int:
    """Cores this process may use: its affinity mask, cut to the cgroup's quota (rounded down, at least 1)."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota(root)
    return allowed if quota is None else max(1, int(min(allowed, quota)))


def cpu_quota(root: Path = ROOT) -> float | None:
    """Cores' worth of CPU time that this process's cgroups allow it; None where they do not limit it."""
    quotas = [quota for folder in cgroups(root, "cpu") if (quota := _cpu_quota(folder)) is not None]
    return min(quotas, default=None)


def memory_available(root: Path = ROOT) -> int:
    """Bytes of host memory that can still be had without swapping or meeting a cgroup limit."""
    left = [left for folder in cgroups(root, "memory") if (left := _memory_left(folder)) is not None]
    return max(0, min([meminfo(root, "MemAvailable"), *left]))


def memory_total(root: Path = ROOT) -> int:
    """Bytes of host memory this process may use at all: the machine's, or the smallest cgroup limit."""
    limits = [limit for folder in cgroups(root, "memory") if (limit := _memory_limit(folder)) is not None]
    return min([meminfo(root, "MemTotal"), *limits])


def oom_kills(root: Path = ROOT) -> int:
    """How many processes the kernel has killed for memory, in this process's cgroups and on the whole machine.

    Only differences mean something: a process is counted once in every folder it is below."""
    files = [root / "proc/vmstat"]
    for folder in cgroups(root, "memory"):
        files += [folder / "memory.events", folder / "memory.oom_control"]
    lines = (line.split() for file in files for line in text_of_file(file).splitlines())
    return sum(int(fields[1]) for fields in lines if len(fields) == 2 and fields[0] == "oom_kill")


def disk_free(path: Path) -> int:
    """Free bytes for an ordinary user on the file system that holds, or would hold, `path`."""
    return shutil.disk_usage(nearest_existing(path)).free


def shm_free(root: Path = ROOT) -> int | None:
    """Free bytes of /dev/shm, where data-loader workers pass batches; None when the system has none."""
    folder = root / "dev/shm"
    return shutil.disk_usage(folder).free if folder.is_dir() else None


def git_commit(cwd: Path) -> str | None:
    """Commit checked out around `cwd`, with `-dirty` when tracked files differ; None outside a repository."""
    command = ["git", "-C", str(cwd), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        answer = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
            # Without this git takes the index lock, and a user's own git command beside the run fails.
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None


def versions(packages: Iterable[str] = VERSIONED) -> dict[str, str]:
    """Installed versions of `packages` by name, and Python's, from their metadata; nothing is imported."""
    found = ((package, _installed(package)) for package in packages)
    return {"python": platform.python_version()} | {package: version for package, version in found if version}


@cache
def _installed(package: str) -> str | None:
    """Read once: a rank asks four times for ten packages, which takes 8 ms of the CPU each time."""
    from importlib import metadata  # loads the email package, which --help can do without

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def meminfo(root: Path, key: str) -> int:
    """A line of /proc/meminfo in bytes; psutil where that file does not exist."""
    for line in text_of_file(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    import psutil

    memory = psutil.virtual_memory()
    return int(memory.available if key == "MemAvailable" else memory.total)


def cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the cgroups this process is in, innermost first, whose limits of `controller` all apply.

    Inside a container /proc/self/cgroup may name a path of the host that is not mounted here; the folders
    above it then remain, up to the container's own root."""
    for line in text_of_file(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        mount = root / "sys/fs/cgroup"
        if number != "0" or names:  # version 1
            if controller not in names.split(","):
                continue
            mount /= names if (mount / names).is_dir() else controller
        inner = mount / path.strip("/")
        for folder in (inner, *inner.parents):
            if folder.is_dir():
                yield folder
            if folder == mount:
                break


def _number(*paths: Path) -> int | None:
    """The number in the first of the files that holds one: v2 writes "max" for no limit."""
    texts = (text_of_file(path).strip() for path in paths)
    return next((int(text) for text in texts if text.lstrip("-").isdigit()), None)


def _cpu_quota(folder: Path) -> float | None:
    """Cores' worth of CPU time per period that cgroup `folder` allows (v2 cpu.max, v1 cpu.cfs_*)."""
    quota, _, period = text_of_file(folder / "cpu.max").strip().partition(" ")
    if quota.isdigit() and period.isdigit():
        return int(quota) / int(period)
    v1_quota, v1_period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return v1_quota / v1_period if v1_quota and v1_quota > 0 and v1_period else None


def _memory_limit(folder: Path) -> int | None:
    limit = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
    return limit if limit is not None and limit < _UNLIMITED else None


def _memory_left(folder: Path) -> int | None:
    """Bytes below the limit; page cache that the kernel would drop before it kills does not count as used."""
    limit = _memory_limit(folder)
    used = _number(folder / "memory.current", folder / "memory.usage_in_bytes")
    if limit is None or used is None:
        return None
    stat = dict(line.split(maxsplit=1) for line in text_of_file(folder / "memory.stat").splitlines() if " " in line)
    cache = int(stat.get("total_inactive_file", stat.get("inactive_file", "0")))
    return limit - used + cache


NEEDED = ("torch", "transformers", "deepspeed", "datasets", "accelerate", "peft")


def require_training_packages() -> None:
    """Raise MissingError unless this Python can train; a login node need not."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise MissingError(f"training needs {', '.join(missing)}", fix="pip install 'dsrun[train]'")


def own_programs_first(environ: Mapping[str, str]) -> dict[str, str]:
    """The change to `environ` that puts this Python's own folder on PATH; none where it is on it already.

    torch compiles with the `ninja` it finds on PATH, and a virtual environment that is called by its path is not on
    it: there may be none, or one of another version, with which torch compiles everything again."""
    own = str(Path(sys.executable).parent)
    search = environ.get("PATH", os.defpath)
    return {} if own in search.split(os.pathsep) else {"PATH": own + os.pathsep + search}


@dataclass(frozen=True, kw_only=True)
class MountPoint:
    """A mounted file system: where, its type ("ext4", "nfs4"), and its options ("rw", "noexec")."""

    point: Path
    kind: str
    options: tuple[str, ...] = ()

    @property
    def shared(self) -> bool:
        """Whether another machine serves it."""
        return self.kind in toml_beside(__file__, "mounts.toml")["network"]


def mount_in(text: str, path: Path) -> MountPoint | None:
    """The file system that holds `path`, links followed, by the lines of /proc/self/mounts; None where none does."""
    real = path.resolve()
    found: MountPoint | None = None
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 4:
            continue
        # The kernel writes blanks, tabs, line breaks and backslashes as octal numbers (getmntent(3)).
        point = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[1]))
        # Of two at one place the later one is on top.
        if real.is_relative_to(point) and (found is None or len(point.parts) >= len(found.point.parts)):
            found = MountPoint(point=point, kind=fields[2], options=tuple(fields[3].split(",")))
    return found


TESTED: Mapping[str, str] = {"torch": "2.13.0", "transformers": "5.23.0"}
"""The versions of torch and transformers that dsrun's tests run with: those of constraints.txt, as a test ensures."""


def untested(versions: Mapping[str, str]) -> Message | None:
    """What to tell of installed versions that are not tested; None where they are, up to the number of the patch, or
    where there are none."""
    other = [name for name, tested in TESTED.items() if name in versions and _minor(versions[name]) != _minor(tested)]
    if not other:
        return None
    return Message(
        "{installed}: not tested with dsrun, whose tests run with {tested}",
        installed=", ".join(f"{name} {versions[name]}" for name in other),
        tested=", ".join(f"{name} {TESTED[name]}" for name in other),
    )


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
