"""Who has a run folder: the lock of rank 0, which trains there, and that of the supervisor, which starts it again."""

import errno
import fcntl
import json
import os
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from dsrun.errors import UsageError
from dsrun.runs.records import utc_now
from dsrun.system import host
from dsrun.system.files import parse_json, read_bytes
from dsrun.system.process import proc

TRAINER_LOCK = ".lock"
SUPERVISOR_LOCK = ".supervisor"
_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
# Somebody who only asks holds the lock for an instant; a run holds it for hours.
LOCK_TRIES = 5
_PAUSE_S = 0.1
# A start time is ticks since the boot plus the boot's time, which is in whole seconds and moves when the clock is set
# (btime in proc_stat(5); psutil's Process.create_time).
_CLOCK_SLACK_S = 2.0


@dataclass(frozen=True, kw_only=True)
class LockHolder:
    """Who holds a run folder. `began` is the process's start in seconds since the epoch."""

    pid: int
    host: str
    since: str
    began: float | None

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host} since {self.since}"


_NOBODY = LockHolder(pid=0, host="?", since="?", began=None)


class RunLock(AbstractContextManager["RunLock"]):
    """An flock on a file of the run folder, freed by the kernel when its process dies, however it dies.

    Forked children (data-loader workers) give their copy up at once, else an orphaned one would keep the lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def acquire(self) -> Self:
        """Take the lock and write who has it. Raises UsageError when another process, or this one, has it."""
        # For writing, as over NFS flock is a lock on bytes, and an exclusive one needs that (flock(2)).
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        if not _lock(fd, fcntl.LOCK_EX):
            os.close(fd)
            raise in_use(self.path.parent, read_holder(self.path))
        self._fd = fd
        os.register_at_fork(after_in_child=self._forget)
        own = LockHolder(pid=os.getpid(), host=host.hostname(), since=utc_now(), began=proc.start_time(os.getpid()))
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(asdict(own)).encode(), 0)
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

    def __exit__(self, *_: object) -> None:
        self.release()


def is_in_use(run: Path, *, tries: int = LOCK_TRIES) -> LockHolder | None:
    """Who trains in the run folder `run` now, or supervises a run there; None for no one or where there is no such
    folder.

    It takes 0.1 s a try while somebody does. One is enough for who only shows it: a run that has just begun or ended
    is seen the next time."""
    return trainer_of(run, tries=tries) or _holder(run / SUPERVISOR_LOCK, tries)


def trainer_of(run: Path, *, tries: int = LOCK_TRIES) -> LockHolder | None:
    """The rank of dsrun's own training that has the run folder `run` now."""
    return _holder(run / TRAINER_LOCK, tries)


def _holder(path: Path, tries: int) -> LockHolder | None:
    try:
        # Reading is all that a shared lock needs, also over NFS; the folder may be another user's.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return None if _lock(fd, fcntl.LOCK_SH, tries=tries) else read_holder(path)
    finally:
        os.close(fd)


def last_holder(run: Path) -> LockHolder:
    """Who has, or had, the run folder `run`: its supervisor where there was one, else its rank 0; with question marks
    where no one is named. A rank that was killed still names itself, but not beyond the end of its supervisor."""
    supervisor, trainer = run / SUPERVISOR_LOCK, run / TRAINER_LOCK
    named = read_holder(supervisor)
    with suppress(OSError):
        if named.pid > 0 or supervisor.stat().st_mtime_ns >= trainer.stat().st_mtime_ns:
            return named
    return read_holder(trainer)


def in_use(run: Path, holder: LockHolder) -> UsageError:
    """The error for a folder that `holder` has."""
    return UsageError(f"output folder {run} is in use by {holder}", fix="choose another --output or stop it")


def read_holder(path: Path) -> LockHolder:
    """The holder that the lock file names, with question marks while it is empty."""
    try:
        found = parse_json(read_bytes(path))
        return LockHolder(
            pid=int(found["pid"]), host=str(found["host"]), since=str(found["since"]), began=found.get("began")
        )
    except (OSError, ValueError, OverflowError, KeyError, TypeError):
        return _NOBODY


def _lock(fd: int, kind: int, *, tries: int = LOCK_TRIES) -> bool:
    """Try to flock `fd`; where the file system has no locks, see whether the holder it names still lives."""
    for attempt in range(tries):
        if attempt:
            time.sleep(_PAUSE_S)
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno in _NO_LOCKS_HERE:
                return not lives(read_holder(Path(f"/proc/self/fd/{fd}")))
            # EACCES: what fcntl(2) may say of a lock that is held; over NFS flock becomes that.
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
    return False


def lives(holder: LockHolder) -> bool:
    """Whether `holder` runs, as far as this machine can tell; a process of another host is believed dead.

    The start time tells a process apart from a later one with the same number."""
    if holder.pid <= 0 or holder.host != host.hostname() or holder.pid == os.getpid():
        return False
    began = proc.start_time(holder.pid)
    if began is None:
        return False
    with suppress(TypeError, ValueError):
        return holder.began is None or abs(began - float(holder.began)) < _CLOCK_SLACK_S
    return False
