"""`dsrun diagnose`: why a run stopped, from its logs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from dsrun.cli.options import Command, format_option
from dsrun.cli.output import print_json
from dsrun.diagnosis.diagnose import Verdict, of_logs, of_run
from dsrun.errors import EXIT_FINDINGS, UsageError

STDIN = "-"


@click.command(cls=Command, name="diagnose")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...|RUN|-")
@format_option
def command(*, logs: tuple[str, ...], form: str) -> int:
    """Why a run stopped: the cause, the rank that failed first, the line that shows it, and the fix.

    LOG is a log of any launcher or scheduler, which may be gzipped; of several, such as one per rank, the root cause
    is named. `-` reads standard input. RUN is the run folder of a `dsrun train`.

    The exit code is 0 for a healthy run and 3 where an error was found.
    """
    verdict = _verdict(logs)
    if form == "json":
        print_json(verdict.as_dict())
    else:
        _print(verdict)
    failed = any(finding.level == "error" for finding in verdict.findings)
    return EXIT_FINDINGS if failed else 0


def _verdict(logs: tuple[str, ...]) -> Verdict:
    folders = [name for name in logs if name != STDIN and Path(name).is_dir()]
    if folders and len(logs) > 1:
        raise UsageError(f"{folders[0]} is a folder, and other logs are given", fix="name one run, or only files")
    if folders:
        return of_run(Path(folders[0]))
    named = [("standard input", sys.stdin.buffer.read()) if log == STDIN else (log, Path(log)) for log in logs]
    return of_logs(dict(named))


def _print(verdict: Verdict) -> None:
    cause = verdict.cause
    if not verdict.findings:
        logs = f"the {len(verdict.logs)} logs show" if len(verdict.logs) > 1 else "the log shows"
        click.echo(f"{cause.code}: {logs} no failure")
        return
    rows = [
        ("cause", f"{cause.code}: {cause.title}"),
        ("rank", "" if verdict.rank is None else str(verdict.rank)),
        ("where", verdict.where),
        ("line", verdict.evidence),
        ("meaning", cause.means),
        ("fix", cause.fix),
    ]
    rows += [("also", f"{found.code}, {found.where}: {found.message}") for found in verdict.findings[1:]]
    for name, value in rows:
        if value:
            click.echo(f"{name:<8} {value}")
