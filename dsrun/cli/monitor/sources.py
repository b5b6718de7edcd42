"""Where `dsrun monitor` looks: a run folder, a log, standard input, or a SLURM job."""

import os
import selectors
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from dsrun.cli.monitor.section import MonitorSnapshot, of_history, of_job, waiting_for
from dsrun.errors import UsageError
from dsrun.monitoring.run_status import status_of
from dsrun.monitoring.trainer_logs.status import LogReader, history_of_log, status_of_log
from dsrun.runs.folder import is_run, newest_of, runs_below
from dsrun.runs.node_status import NodeStatus
from dsrun.runs.reader import RunReader
from dsrun.runs.records import utc_now
from dsrun.slurm.jobs.queue import SlurmJob, controller_view, one_job
from dsrun.slurm.jobs.submit import interval
from dsrun.system import host
from dsrun.system.slurm import NoAnswerError
from dsrun.system.terminal.display import counted

STDIN = "-"
_CHUNK = 1 << 20


class MonitorSource(Protocol):
    """Something that can be looked at again and again."""

    def read(self) -> MonitorSnapshot:
        """What there is now. Raises UsageError where there is nothing to see."""


class RunSource:
    """A run folder."""

    def __init__(self, path: Path) -> None:
        self._reader = RunReader(path)

    def read(self) -> MonitorSnapshot:
        now = time.time()
        history = self._reader.read()
        return of_history(history, status_of(history, now, lock_tries=1), now)


class LogSource:
    """The log of another trainer, with the GPUs of this machine, where it may run."""

    def __init__(self, path: Path, *, with_gpus: bool = True) -> None:
        self._reader = LogReader(path)
        self._with_gpus = with_gpus
        self._has_looked = False

    def read(self) -> MonitorSnapshot:
        now = time.time()
        self._reader.read()
        status = self._reader.status(now)
        history = history_of_log(self._reader.log, self._reader.path)
        if self._with_gpus and status.state == "training":
            history = replace(history, nodes=(_this_node(is_first=not self._has_looked),))
            self._has_looked = True
        return of_history(history, status, now, kind="log")


class StdinSource:
    """A log that comes through a pipe."""

    def __init__(self) -> None:
        self._reader = LogReader(Path(STDIN))
        self._selector = selectors.DefaultSelector()
        self._is_over = False
        try:
            self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        except OSError:  # a plain file, of which epoll knows nothing: it can be read at once
            self._selector.close()
            self._reader.feed(sys.stdin.buffer.read(), now=None)
            self._end()

    def read(self) -> MonitorSnapshot:
        while not self._is_over and self._selector.select(0):
            chunk = os.read(sys.stdin.fileno(), _CHUNK)
            if chunk:
                self._reader.feed(chunk, now=utc_now())
            else:
                self._end()
        now, log, path = time.time(), self._reader.log, Path("standard input")
        status = status_of_log(log, path, is_over=self._is_over)
        if self._is_over and status.state == "silent":
            status = replace(status, state="finished")
        return of_history(history_of_log(log, path), status, now, kind="log")

    def read_to_end(self) -> None:
        """Wait for the end of the pipe."""
        while not self._is_over:
            self._selector.select()
            self.read()

    def _end(self) -> None:
        self._reader.end()
        self._is_over = True


class JobSource:
    """A SLURM job: its place in the queue, then its run folder or its log. The controller is asked now and then."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._began = time.monotonic()
        self._due = 0.0
        self._job: SlurmJob | None = None
        self._log: Path | None = None
        self._source: MonitorSource | None = None
        self._seen: Path | None = None

    def read(self) -> MonitorSnapshot:
        job = self._ask()
        path = Path(job.run) if job.run and is_run(Path(job.run)) else self._log
        if path is not None and path != self._seen and (path.is_dir() or path.is_file()):
            self._seen, here = path, Path.cwd()
            path = path.relative_to(here) if path.is_relative_to(here) else path
            self._source = RunSource(path) if path.is_dir() else LogSource(path, with_gpus=False)
        if self._source is None:
            return waiting_for(job, time.time())
        return of_job(self._source.read(), job)

    def _ask(self) -> SlurmJob:
        elapsed = time.monotonic() - self._began
        if self._job is None or elapsed >= self._due:
            self._due = elapsed + interval(elapsed)
            try:
                self._job = one_job(self._job_id)
            except NoAnswerError:
                if self._job is None:
                    raise
                return self._job
            if self._log is None and self._job.state != "PENDING":
                with suppress(NoAnswerError):
                    view = controller_view(self._job.id)
                    self._log = Path(view.log) if view and view.log else None
        return self._job


def find_source(run: str | None, log: str | None, job_id: str | None) -> MonitorSource:
    """The source that the command names. Raises UsageError where nothing is there."""
    if job_id is not None:
        return JobSource(job_id)
    if log == STDIN:
        return StdinSource()
    if log is not None:
        return LogSource(Path(log))
    return RunSource(newest_run() if run is None else run_named(Path(run)))


def run_named(path: Path) -> Path:
    """`path` where it is a run folder. Raises UsageError that tells what it is instead."""
    if path.is_file():
        raise UsageError(f"{path} is a file", fix=f"dsrun monitor --log {path}")
    if path.is_dir() and not is_run(path) and (runs := runs_below(path)):
        newest = newest_of(runs)
        raise UsageError(f"{path} contains {counted(len(runs), 'run')}", fix=f"name one, such as the newest, {newest}")
    return path


def newest_run() -> Path:
    """The run below ./runs, or else below the current folder, that was written to last."""
    for folder in (Path("runs"), Path()):
        if folder.is_dir() and (runs := runs_below(folder)):
            return newest_of(runs)
    raise UsageError("there are no runs below ./runs", fix="give the --output of a dsrun train, --log or --job")


def _this_node(*, is_first: bool) -> NodeStatus:
    """The GPUs and the load of this machine since the look before; the first look has none."""
    import psutil

    from dsrun.machine.gpu_samples import gpu_samples

    cpu, total = psutil.cpu_percent() / 100, host.memory_total()
    return NodeStatus(
        time=utc_now(),
        host=host.hostname(),
        node=0,
        attempt=0,
        world_size=0,
        gpus=gpu_samples(),
        cpu=None if is_first else cpu,
        memory_used=total - host.memory_available(),
        memory_total=total,
    )
