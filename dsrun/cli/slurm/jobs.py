"""`dsrun jobs`: the user's SLURM jobs, with the step and loss each has reached."""

from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path

import click

from dsrun.cli.output import evaluated, print_fields, print_json, print_table
from dsrun.datafiles import toml_beside
from dsrun.diagnosis.rules import cause_named
from dsrun.errors import EXIT_INTERRUPTED, UsageError, did_you_mean
from dsrun.findings.finding import text_of
from dsrun.findings.translation import translated
from dsrun.slurm.jobs.queue import SlurmJob, check_id, controller_view, my_jobs
from dsrun.slurm.jobs.submit import follow
from dsrun.system.terminal.display import printable
from dsrun.system.terminal.stderr import print_detail, print_note

_TABLE = toml_beside(__file__)


def show(
    *, job_id: str | None, follow: bool, state: str | None, name: str | None, limit: int, hours: float, form: str
) -> int:
    if job_id is not None:
        check_id(job_id)
    states = None if state is None else list(map(_state, state.split(",")))
    if follow and job_id:
        return follow_job(job_id)

    def is_wanted(job: SlurmJob) -> bool:
        return (states is None or job.state in states) and (name is None or fnmatchcase(job.name, name))

    found = my_jobs(hours=hours, job_id=job_id, wanted=is_wanted, limit=limit)
    jobs = found.jobs
    if found.more:
        print_note(f"{found.more} more are not listed (--limit {limit})")
    if form == "json":
        print_json({"jobs": [job.as_json() for job in jobs]})
    elif job_id and len(jobs) == 1:
        _print_one(jobs[0])
    elif jobs:
        print_table([[*_TABLE["columns"]], *map(_row, jobs)])
    else:
        click.echo(f"no jobs in the queue, and none ended in the last {hours:g} hours", err=True)
    return 0


def _state(word: str) -> str:
    """A state as SLURM calls it, also from its short name, in any case. Raises UsageError, with the nearest."""
    states: dict[str, str] = _TABLE["states"]
    name = states.get(word.strip().upper(), word.strip().upper())
    if name not in states.values():
        raise UsageError(f"--state {word.strip()!r} is no state of a job", fix=did_you_mean(name, states.values()))
    return name


def follow_job(job_id: str, *, log_to_stderr: bool = False) -> int:
    """Follow the job to its end, with its log on stdout or stderr, and return its exit code.

    Ctrl-C leaves the job running."""
    try:
        return follow(
            job_id,
            notify=lambda line: print_detail(f"{datetime.now().astimezone():%H:%M:%S} {line}"),
            show=lambda line: click.echo(printable(line), err=log_to_stderr),
        )
    except KeyboardInterrupt:
        print_note(
            f"job {job_id} keeps running: `dsrun jobs {job_id} --follow` follows it again, `scancel {job_id}` ends it"
        )
        return EXIT_INTERRUPTED


def _row(job: SlurmJob) -> tuple[str, ...]:
    return tuple(evaluated(_TABLE["columns"], job=job, progress=job.progress, here=_here).values())


def _here(run: str | None) -> str:
    """A path below the current folder in short."""
    here = Path.cwd()
    return str(Path(run).relative_to(here)) if run and Path(run).is_relative_to(here) else run or ""


def _print_one(job: SlurmJob) -> None:
    view = controller_view(job.id)
    row = dict(zip(_TABLE["columns"], _row(job), strict=True))
    cause = translated(text_of("verdict.more", title=cause_named(job.cause).title)) if job.cause else ""
    names = {"view": view, "cause": cause, "row": row, "progress": job.progress}
    print_fields(evaluated(_TABLE["fields"], job=job, **names).items(), width=11)
