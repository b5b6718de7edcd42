"""The lock of a run folder: one main worker at a time, and none after its death."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from dsrun.errors import UsageError
from dsrun.runs.records import utc_now
from dsrun.system import host, proc

_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
# Somebody who only asks holds the lock for an instant; a run holds it for hours.
_TRIES = 5
_PAUSE_S = 0.1
_CLOCK_SLACK_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who holds a run folder. `began` is the process's start in seconds since the epoch."""

    pid: int
    host: str
    since: str
    began: float | None

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host} since {self.since}"


class RunLock:
    """An flock on RUN/.lock, freed by the kernel when its process dies, however it dies.

    Forked children (data-loader workers) give their copy up at once, else an orphaned one would keep the
    lock.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def acquire(self) -> Self:
        """Take the lock and write who has it. Raises UsageError when another process, or this one, has it."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        if not _lock(fd, fcntl.LOCK_EX):
            os.close(fd)
            raise in_use(self.path.parent, read_holder(self.path))
        self._fd = fd
        os.register_at_fork(after_in_child=self._forget)
        holder = {
            "pid": os.getpid(),
            "host": host.hostname(),
            "since": utc_now(),
            "began": proc.start_time(os.getpid()),
        }
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(holder).encode(), 0)
        return self

    def release(self) -> None:
        """Free the folder; a second call does nothing. The file stays: removing it would race with a run."""
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            self._forget()

    def _forget(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def is_in_use(run: Path) -> Holder | None:
    """Who trains in the run folder `run` now; None when nobody does or there is no such folder."""
    path = run / ".lock"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return None if _lock(fd, fcntl.LOCK_SH) else read_holder(path)
    finally:
        os.close(fd)


def in_use(run: Path, holder: Holder) -> UsageError:
    """The error for a folder that `holder` has."""
    return UsageError(f"output folder {run} is in use by {holder}", fix="choose another --output or stop it")


def read_holder(path: Path) -> Holder:
    """What the lock file says, with question marks where it says nothing (yet)."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return Holder(pid=int(said["pid"]), host=str(said["host"]), since=str(said["since"]), began=said.get("began"))
    except (OSError, ValueError, KeyError, TypeError):
        return Holder(pid=0, host="?", since="?", began=None)


def _lock(fd: int, kind: int) -> bool:
    """Try to flock `fd`; where the file system has no locks, see whether the holder it names still lives."""
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE_S)
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno in _NO_LOCKS_HERE:
                return not lives(read_holder(Path(f"/proc/self/fd/{fd}")))
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
    return False


def lives(holder: Holder) -> bool:
    """Whether `holder` runs, as far as this machine can tell; a process of another host is believed dead.

    The start time tells a process apart from a later one with the same number.
    """
    if holder.pid <= 0 or holder.host != host.hostname() or holder.pid == os.getpid():
        return False
    began = proc.start_time(holder.pid)
    if began is None:
        return False
    with suppress(TypeError, ValueError):
        return holder.began is None or abs(began - float(holder.began)) < _CLOCK_SLACK_S
    return False
