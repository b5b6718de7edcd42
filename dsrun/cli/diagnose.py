"""`dsrun diagnose`: why a run stopped, from its logs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsrun.errors import EXIT_FINDINGS, UsageError

if TYPE_CHECKING:
    from dsrun.diagnosis.diagnose import Verdict

FORMAT_VERSION = 1
STDIN = "-"


@click.command(name="diagnose", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("logs", nargs=-1, required=True, metavar="LOG...|RUN|-")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--debug", is_flag=True, hidden=True)
def command(*, logs: tuple[str, ...], form: str, debug: bool) -> int:
    """Why a run stopped: the cause, the rank that failed first, the line that tells it, and what helps.

    LOG is a log of any launcher or scheduler, also compressed with gzip; with several, such as one per rank, the root
    cause among them is named. `-` reads standard input. RUN is the folder of a dsrun train.

    The exit code is 0 for a healthy run and 3 where an error was found.
    """
    del debug  # main() looks for it
    verdict = _verdict(logs)
    if form == "json":
        click.echo(json.dumps({"version": FORMAT_VERSION, **verdict.as_dict()}, indent=2, ensure_ascii=False))
    else:
        _print(verdict)
    failed = any(finding.level == "error" for finding in verdict.findings)
    return EXIT_FINDINGS if failed else 0


def _verdict(logs: tuple[str, ...]) -> Verdict:
    from dsrun.diagnosis.diagnose import of_logs, of_run

    folders = [name for name in logs if name != STDIN and Path(name).is_dir()]
    if folders and len(logs) > 1:
        raise UsageError(f"{folders[0]} is a folder, and there are other logs", fix="one run at a time, or files only")
    if folders:
        return of_run(Path(folders[0]))
    return of_logs({_name(log): sys.stdin.buffer.read() if log == STDIN else Path(log) for log in logs})


def _name(log: str) -> str:
    return "standard input" if log == STDIN else log


def _print(verdict: Verdict) -> None:
    cause = verdict.cause
    if not verdict.findings:
        logs = f"{len(verdict.logs)} logs tell" if len(verdict.logs) > 1 else "the log tells"
        click.echo(f"{cause.code}: {logs} of no failure")
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
            click.echo(f"{name.ljust(8)} {value}")
