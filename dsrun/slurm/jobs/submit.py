"""Submitting a job, testing whether it could start, and following it to its end: states, log and exit code.

The controller is queried now and then (`sbatch --wait` backs off: it noticed the end of a 15 s job after 42 s). A
requeue, a controller that is away for a while, and a controller that has forgotten the job are all survived."""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from subprocess import CompletedProcess

from dsrun.errors import ToolError, UsageError
from dsrun.runs.tail import LineTail
from dsrun.slurm.jobs.status import HISTORY_FIELDS, MAYBE_FINAL, JobStatus, from_history, read_jobs
from dsrun.system import slurm
from dsrun.system.process.scratch import scratch_folder
from dsrun.system.slurm import NoAnswerError
from dsrun.system.terminal.display import NotePrinter

_NUMBER = re.compile(r"(\d+)(?:;\S+)?")
_WOULD = re.compile(
    r"Job \d+ to start at (?P<start>\S+) (?:a )?using (?P<cores>\d+) processors on (?:nodes )?(?P<nodes>\S+)"
    r"(?: in partition (?P<partition>\S+))?"
)
# SLURM's plan ends a year after the last job it knows; one without a time limit counts as decades (seen: 2083).
_NEVER_YEARS = 10


def submit(script: str, extra: Sequence[str] = (), *, notify: Callable[[str], None] | None = None) -> str:
    """Submit the text `script` with the further options `extra` and return the job's number.

    `notify` gets what sbatch remarks. Raises ToolError with SLURM's reason when it refuses the job, and MissingError
    where there is no SLURM."""
    answer = _sbatch(["--parsable", *extra], script)
    found = _NUMBER.fullmatch(answer.stdout.strip().rpartition("\n")[2])
    if answer.returncode != 0 or not found:
        raise ToolError(f"SLURM refuses the job: {slurm.error_line(answer)}", fix="try --test-only")
    for line in answer.stderr.splitlines():
        if notify and line.strip():
            notify(line.strip())
    return found[1]


def test_only(script: str) -> str:
    """Whether and when the job would start, in one line. Uses up a job number. Raises as `submit` does."""
    answer = _sbatch(["--test-only"], script)
    if answer.returncode != 0:
        # Also of jobs that sbatch takes and that wait: for a drained node, or for ever.
        raise ToolError(f"SLURM could not start the job now: {slurm.error_line(answer)}")
    return forecast(slurm.error_line(answer))


def forecast(output: str) -> str:
    """The output of `sbatch --test-only` in plain words; unchanged where its form is unknown."""
    found = _WOULD.search(output)
    if not found:
        return output
    where = f"on {found['nodes']}" + (f" of partition {found['partition']}" if found["partition"] else "")
    if int(found["start"][:4]) - datetime.now().year > _NEVER_YEARS:
        return f"would start {where} when jobs that have no time limit end"
    return f"would start at {found['start']} {where} with {found['cores']} cores"


def _sbatch(options: Sequence[str], script: str) -> CompletedProcess[str]:
    with scratch_folder("dsrun-") as folder:
        (path := folder / "job.sh").write_bytes(script.encode("utf-8", "surrogateescape"))
        return slurm.sbatch(options, path)


TICK_S = 1.0
"""How often logs are read. The controller, which many users share, is asked less and less often."""
_MAX_INTERVAL_S = 10.0
_ACCOUNTING_TICKS = 30  # for accounting, which may learn of a job's end later than the controller forgets it


def interval(elapsed: float) -> float:
    """Seconds from one question to the next, `elapsed` seconds after the first: 1 at first, 10 after five minutes."""
    return min(_MAX_INTERVAL_S, TICK_S + elapsed / 30)


class JobMonitor:
    """The last known state of a job and its array tasks; `update` returns what has changed."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.views: dict[str, JobStatus] = {}
        self._sure = False

    @property
    def ended(self) -> bool:
        """Whether every task has ended, for good."""
        return self._sure and bool(self.views) and all(view.is_final for view in self.views.values())

    @property
    def never_starts(self) -> str | None:
        """The job whose dependency can no longer be satisfied; None where there is none."""
        waiting = (view for view in self.views.values() if view.state == "PENDING")
        return next((view.label for view in waiting if view.reason == "DependencyNeverSatisfied"), None)

    @property
    def result(self) -> int:
        """The exit code of the first task that did not end well; 0 when all did."""
        return next((code for view in self.views.values() if (code := view.result)), 0)

    def update(self, views: Iterable[JobStatus]) -> list[str]:
        """Take the present state in; one line for everything that has changed."""
        now = {view.label: view for view in views}
        lines = [_line(self.views.get(label), view) for label, view in now.items()]
        # A state that a requeue may follow at once has to be seen twice.
        states = {label: view.state for label, view in self.views.items()}
        self._sure = all(
            view.state not in MAYBE_FINAL or states.get(label) == view.state for label, view in now.items()
        )
        self.views = now
        return [line for line in lines if line]


def _line(before: JobStatus | None, view: JobStatus) -> str:
    """How a job's change reads; empty when nothing has changed that matters."""
    if before and (before.state, before.restarts) == (view.state, view.restarts):
        same = view.reason == before.reason if view.state == "PENDING" else view.nodes == before.nodes
        if same or view.is_final:
            return ""
    parts = [f"job {view.label}: {view.state}"]
    if view.state == "PENDING" and view.reason:
        parts.append(f"({view.reason})")
    if view.state == "RUNNING" and view.nodes:
        parts.append(f"on {view.nodes}")
    if view.is_final:
        parts += [f"after {view.elapsed}"] if view.elapsed else []
        parts += [f"({view.reason})"] if view.reason and view.reason != "NonZeroExitCode" else []
        parts += [f"exit code {view.result}"] if view.result else []
    if view.restarts and (before is None or before.restarts != view.restarts):
        parts.append(f"requeued {view.restarts} time{'s' if view.restarts > 1 else ''} so far")
    return " ".join(parts)


def added_lines(tail: LineTail, *, last: bool = False) -> list[str]:
    """The lines added since the last call; with `last` also the one that was not ended. None while the file cannot be
    read."""
    found: list[bytes] = []
    with suppress(OSError):
        found, _ = tail.read()
    if last and (torn := tail.take_torn()):
        found.append(torn)
    return [line.decode("utf-8", "replace") for line in found]


def follow(job_id: str, *, notify: NotePrinter, show: NotePrinter, pause: Callable[[float], None] = time.sleep) -> int:
    """Follow a job, or all tasks of an array, to the end and return its result as an exit code.

    `notify` gets every change of state, `show` every line of the log. Raises UsageError for a job that SLURM does not
    know, and ToolError when SLURM no longer knows how it ended."""
    monitor, tails = JobMonitor(job_id), dict[str, LineTail]()

    def show_logs(*, last: bool = False) -> None:
        for view in monitor.views.values():
            if view.log is None:
                continue
            prefix = f"[{view.label}] " if "_" in view.label else ""
            for line in added_lines(tails.setdefault(view.log, LineTail(Path(view.log))), last=last):
                show(prefix + line)

    elapsed = due = 0.0
    silent = False
    while True:
        if elapsed >= due:
            try:
                lines = monitor.update(_query_status(monitor, pause))
                for line in ["the controller answers again", *lines] if silent else lines:
                    notify(line)
                silent = False
            except NoAnswerError as error:
                if not silent:
                    notify(f"{error.message}; the job goes on without it, waiting")
                silent = True
            due = elapsed + interval(elapsed)
        show_logs()
        if never := monitor.never_starts:
            what = f"job {job_id} will never start: the job it depends on did not end as it should have"
            raise ToolError(what, fix=f"scancel {never}")
        if monitor.ended:
            pause(TICK_S)  # for what a network file system shows late
            show_logs(last=True)
            return monitor.result
        pause(TICK_S)
        elapsed += TICK_S


def _query_status(monitor: JobMonitor, pause: Callable[[float], None]) -> tuple[JobStatus, ...]:
    """The job as the controller, or the accounting after it, knows it."""
    text = slurm.job(monitor.job_id)
    if text is not None:
        return read_jobs(text)
    for _ in range(_ACCOUNTING_TICKS):
        rows = slurm.history(HISTORY_FIELDS, job_id=monitor.job_id)
        views = [from_history(row) for row in rows or ()]
        if views and all(view.is_final for view in views):
            before = [monitor.views.get(view.label, view) for view in views]
            return tuple(
                replace(view, log=old.log, restarts=old.restarts) for view, old in zip(views, before, strict=True)
            )
        if not rows:
            break
        pause(TICK_S)
    if not monitor.views:
        raise UsageError(f"SLURM knows no job {monitor.job_id}", fix="dsrun jobs lists yours")
    raise ToolError(
        f"SLURM has forgotten job {monitor.job_id}, and there is no accounting to say how it ended", fix="read its log"
    )
