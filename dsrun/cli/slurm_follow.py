"""`--follow`: a job's log, its changes of state on stderr, and its result as exit code."""

from __future__ import annotations

from datetime import datetime

import click

from dsrun.cli.words import remark
from dsrun.errors import EXIT_INTERRUPTED


def follow(job_id: str, *, log_to_stderr: bool = False) -> int:
    """Follow the job to its end, its log on stdout unless that has the job's number. Ctrl-C leaves it running and says
    how to go on."""
    from dsrun.slurm.jobs import follow as library

    def show(line: str) -> None:
        click.echo(line, err=log_to_stderr)

    try:
        return library.follow(job_id, say=_state, show=show)
    except KeyboardInterrupt:
        remark(
            f"job {job_id} goes on: `dsrun jobs {job_id} --follow` follows it again, `scancel {job_id}` ends it"
        )
        return EXIT_INTERRUPTED


def _state(line: str) -> None:
    click.echo(f"{datetime.now().astimezone():%H:%M:%S} {line}", err=True)
