"""The run folder: its paths, which folders may become one, and its lock."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Self

from dsrun.errors import UsageError
from dsrun.runs.records import utc_now
from dsrun.system import host
from dsrun.system.files import nearest_existing, parse_json, read_bytes
from dsrun.system.process import proc

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


class RunLock:
    """An flock on RUN/.lock, freed by the kernel when its process dies, however it dies.

    Forked children (data-loader workers) give their copy up at once, else an orphaned one would keep the lock.
    """

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def is_in_use(run: Path, *, tries: int = LOCK_TRIES) -> LockHolder | None:
    """Who trains in the run folder `run` now; None for no one or where there is no such folder.

    It takes 0.1 s a try while somebody does. One is enough for who only shows it: a run that has just begun or ended
    is seen the next time.
    """
    path = RunFolder(run).lock
    try:
        # Reading is all that a shared lock needs, also over NFS; the folder may be another user's.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return None if _lock(fd, fcntl.LOCK_SH, tries=tries) else read_holder(path)
    finally:
        os.close(fd)


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
        return LockHolder(pid=0, host="?", since="?", began=None)


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


# The names that `RunFolder.checkpoint` gives; a checkpoint-0030 is somebody's copy, and would not be found by its step.
_CHECKPOINT = re.compile(r"checkpoint-(0|[1-9][0-9]*)")
# What a run leaves when it dies before run.json is written, and what a batch system puts there before it starts.
_OWN = re.compile(
    r"\.lock|\.saving|\.universal|set-aside|earlier-\d+-\d+|logs|nan|status|console\.log|(metrics|events|samples)\.jsonl"
    r"|(recipe|remedy|skip-steps)\.json|\..*\.json\..*\.tmp|slurm-.*\.(out|err)|\.nfs.*|report\.html"
)
RANK_LOG = re.compile(r"rank-(\d+)\.attempt-(\d+)\.log(\.gz)?")
_SLUG_LENGTH = 60
MANY_RANKS = 64
"""Above which each node's ranks write their logs into a sub-folder of its own: parallel file systems are slow with
folders of many thousand files."""


class _Inside:
    """A path inside a run folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: RunFolder, owner: type[RunFolder]) -> Path:
        return folder.path / self._name


@dataclass(frozen=True)
class RunFolder:
    """Paths inside one run folder; making a RunFolder touches no file."""

    path: Path

    run_json = _Inside("run.json")
    """Resolved specs, versions, host, command line of the newest attempt."""
    recipe = _Inside("recipe.json")
    """The resolved flags that the run trains by; written once per start."""
    metrics = _Inside("metrics.jsonl")
    """One line per logged step."""
    events = _Inside("events.jsonl")
    """One line per event."""
    console = _Inside("console.log")
    """What the user saw."""
    finished = _Inside("FINISHED")
    """There when the last attempt reached the run's end; what a requeued job looks for."""
    logs = _Inside("logs")
    """Folder of one log per rank and attempt."""
    model = _Inside("model")
    """Folder of the final model."""
    adapter = _Inside("adapter")
    """Folder of a LoRA run's adapter."""
    lock = _Inside(".lock")
    """The lock file."""

    @classmethod
    def create(cls, path: Path | str, *, force: bool = False) -> RunFolder:
        """The folder `path`, made if it is not there; an earlier run's folder is taken over as it is.

        For the launcher and the main worker, before `acquire`: the folder is in use afterwards, also for
        this process. Raises UsageError where `refuse_unfit` does.
        """
        folder = cls(Path(path))
        refuse_unfit(folder.path, force=force)
        try:
            folder.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _cannot_write(folder.path, error.strerror) from error
        return folder

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """An existing run folder, for reading. Raises UsageError when `path` is none."""
        folder = cls(Path(path))
        if not folder.run_json.is_file():
            what = "has no run.json" if folder.path.is_dir() else "does not exist"
            raise UsageError(f"{folder.path} is not a run folder: it {what}", fix="give the --output of a dsrun train")
        return folder

    def checkpoint(self, step: int) -> Path:
        """Folder of the checkpoint after optimizer step `step`."""
        return self.path / f"checkpoint-{step}"

    @property
    def results(self) -> tuple[Path, ...]:
        """What `--resume never` sets aside beside checkpoints, predictions and samples, there or not."""
        kept = (self.model, self.adapter, self.metrics, self.events, self.run_json, self.recipe, self.console)
        return (*kept, self.finished)

    def log(self, rank: int, attempt: int = 0, *, node: int | None = None) -> Path:
        """Log of one rank in one attempt; in the sub-folder of its node, if that is given."""
        folder = self.logs if node is None else self.logs / f"node-{node}"
        return folder / f"rank-{rank}.attempt-{attempt}.log"

    def rank_logs(self) -> dict[Path, tuple[int, int]]:
        """All logs of ranks, also compressed ones, each with its rank and attempt."""
        files = [*self.logs.glob("rank-*"), *self.logs.glob("node-*/rank-*")]
        found = ((path, RANK_LOG.fullmatch(path.name)) for path in sorted(files))
        return {path: (int(match[1]), int(match[2])) for path, match in found if match}

    def checkpoints(self) -> list[tuple[int, Path]]:
        """Every checkpoint-N folder as (step, path), highest step first, whole or torn."""
        found = [
            (int(match[1]), entry)
            for entry in (self.path.iterdir() if self.path.is_dir() else ())
            if (match := _CHECKPOINT.fullmatch(entry.name)) and entry.is_dir()
        ]
        return sorted(found, reverse=True)

    def acquire(self) -> RunLock:
        """Lock the folder for this process; UsageError when a run is going on in it."""
        return RunLock(self.lock).acquire()


def default_name(model: str, now: datetime) -> str:
    """Run folder of a run of `model` (Hub name or path) started at `now`: runs/t5-small-20261121-044800."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", model.rstrip("/").rpartition("/")[2])[:_SLUG_LENGTH].strip("-._")
    return f"runs/{slug or 'run'}-{now:%Y%m%d-%H%M%S}"


def refuse_unfit(path: Path, *, force: bool = False) -> None:
    """Raise UsageError unless a run may write to `path`; nothing is created.

    Unfit: a file; a folder in use; a place that cannot be written; a folder with other things in it that is
    no run folder, which `force` allows.
    """
    try:
        is_file = path.exists() and not path.is_dir()
    except OSError as error:  # a name too long for the file system
        raise _cannot_write(path, error.strerror) from error
    if is_file:
        raise UsageError(f"output {path} is a file", fix="give a folder as --output")
    base = nearest_existing(path)
    if not base.is_dir():
        raise UsageError(f"output {path} lies below the file {base}", fix="give a folder as --output")
    if not os.access(base, os.W_OK | os.X_OK):
        raise _cannot_write(path, f"no permission in {base}")
    holder = is_in_use(path)
    if holder:
        raise in_use(path, holder)
    if path.is_dir() and not force and not RunFolder(path).run_json.is_file():
        foreign = sorted(entry.name for entry in path.iterdir() if not _OWN.fullmatch(entry.name))
        if foreign:
            raise UsageError(
                f"output folder {path} is not a run folder and contains {', '.join(foreign[:3])}"
                + (f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""),
                fix="choose another --output, or --force to write into it",
            )


def _cannot_write(path: Path, why: str | None) -> UsageError:
    return UsageError(f"cannot write to output folder {path}: {why}", fix="choose another --output")
