"""`dsrun audit`: whether finished runs were silently wrong."""

import sys
from pathlib import Path

import click

from dsrun.audit.evidence import evidence_of, runs_in
from dsrun.audit.judge import answers, audited, folded
from dsrun.cli.output import print_json, print_line
from dsrun.errors import EXIT_FINDINGS
from dsrun.findings.checks import as_json, result_lines
from dsrun.system.terminal.display import terminal_width


def audit(*, paths: tuple[str, ...], every: bool, form: str) -> int:
    # A damaged log among others is one of which nothing can be told.
    runs = {run: run == Path(path) for path in paths for run in runs_in(Path(path))}
    found = {str(run): audited(evidence_of(run, strict=is_named)) for run, is_named in runs.items()}
    if form == "json":
        shown = {name: as_json(results) | {"answers": answers(results)} for name, results in found.items()}
        print_json(next(iter(shown.values())) if len(shown) == 1 else {"runs": shown})
    for place, (name, results) in enumerate(found.items() if form == "text" else ()):
        if place:
            print_line()
        if len(found) > 1:
            print_line(name)
        rows = results if every else folded(results)
        for line in result_lines(rows, every=every, columns=terminal_width(sys.stdout), of=results):
            click.echo(line)
    return EXIT_FINDINGS if any(each.status == "fail" for results in found.values() for each in results) else 0
