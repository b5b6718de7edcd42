"""When each rank last computed, read or wrote, as the kernel counts it: a sign of life where heartbeats are rare."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dsrun.launch.supervisor.reaper import stat_fields

_EVERY_S = 1.0
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
# Threads that look at something now and then take less, one that is kept from the processor gets more.
_LEAST_S = 0.05
_SHARE = 0.01
# The first of the fields of proc(5) behind the name is the third: utime is the 14th, stime the 15th.
_UTIME, _STIME = 11, 12
# On a slow file server a rank reads and writes for long with less CPU time than counts; 1 MiB/s is work like 1.6%.
_BYTES_A_SECOND = 64 << 20
# What read(2) takes from a disk counts in two of them, which errs on the side of life (proc_pid_io(5)).
_MOVED = (b"rchar", b"wchar", b"read_bytes")


class Activity:
    """Looks at the ranks about once a second."""

    def __init__(self) -> None:
        self._looked = -_EVERY_S
        self._seen: dict[int, tuple[int, float, float]] = {}

    def update(self, pids: Mapping[int, int], now: float) -> dict[int, float]:
        """When each rank of `pids` (rank → process id) was last seen to have worked, by the clock of `now`."""
        if now - self._looked >= _EVERY_S:
            self._looked = now
            for rank, pid in pids.items():
                self._look(rank, pid, now)
        return {rank: at for rank, (_, at, _) in self._seen.items() if rank in pids}

    def _look(self, rank: int, pid: int, now: float) -> None:
        used = cpu_seconds(pid) + bytes_moved(pid) / _BYTES_A_SECOND
        before, at, then = self._seen.get(rank, (0, now, used))
        if before != pid or used - then >= max(_LEAST_S, _SHARE * (now - at)):
            self._seen[rank] = (pid, now, used)


def cpu_seconds(pid: int) -> float:
    """The CPU seconds of all threads of a process; 0 where there is none."""
    fields = stat_fields(pid)
    return (int(fields[_UTIME]) + int(fields[_STIME])) * _TICK_S if fields else 0.0


def bytes_moved(pid: int) -> int:
    """Bytes that a process has read and written by system calls, and those that came from a disk, as by mmap; 0 where
    the kernel does not show them."""
    with suppress(OSError, ValueError):
        lines = (line.split(b":") for line in Path(f"/proc/{pid}/io").read_bytes().splitlines())
        return sum(int(value) for name, value in lines if name in _MOVED)
    return 0
