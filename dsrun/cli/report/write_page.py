"""What `dsrun report` does: reads the runs, and writes the page and the pictures."""

from collections.abc import Sequence
from pathlib import Path

import click

from dsrun.cli.output import json_text, print_line, write_file
from dsrun.errors import UsageError
from dsrun.monitoring.comparison import labels
from dsrun.report.data import read_run
from dsrun.report.page import MARKER, ReportPage, render_page, report_of
from dsrun.system.terminal.secrets import without_tokens
from dsrun.system.terminal.stderr import print_note

PAGE = "report.html"
_BEGINNING = 2048


def run(*, runs: tuple[str, ...], output: str | None, png: str | None, force: bool, form: str) -> None:
    """Write the report of `runs`. Raises UsageError before anything is written where a file is in the way."""
    paths = list({Path(run).resolve(): Path(run) for run in runs}.values())  # each folder once
    page = Path(output) if output is not None else _default(paths)
    overwrite = force or (output is None and len(paths) == 1 and _is_own(page))
    writes_page = form == "text" or output is not None
    if writes_page and not overwrite and page.is_file():
        raise UsageError(f"{page} exists", fix="add --force to replace it, or name another file with -o")
    report = report_of([read_run(path, name) for path, name in zip(paths, labels(paths), strict=True)])
    pictures = _write_pictures(report, Path(png), force=force) if png is not None else []
    text = render_page(report) if form == "text" else without_tokens(json_text(report.as_dict()))
    if not writes_page:
        click.echo(text, nl=False)
        return
    write_file(page, text.encode("utf-8", "backslashreplace"), force=overwrite)
    for file in (page, *pictures):
        print_line(str(file))


def _default(paths: Sequence[Path]) -> Path:
    if len(paths) > 1:
        return Path(PAGE)
    if paths[0].exists() and not paths[0].is_dir():
        raise UsageError(f"{paths[0]} is not a folder", fix="give the --output of a dsrun train or launch")
    return paths[0] / PAGE


def _is_own(page: Path) -> bool:
    """Whether dsrun wrote this page, which is then made anew as the run goes on."""
    try:
        with page.open("rb") as file:
            return MARKER.encode() in file.read(_BEGINNING)
    except OSError:
        return False


def _write_pictures(report: ReportPage, folder: Path, *, force: bool) -> list[Path]:
    from dsrun.report.png import pictures

    made = [(folder / name, content) for name, content in pictures(report.drawn)]
    if not made:
        print_note("no curve has enough points for a picture")
    taken = next((file for file, _ in made if file.exists()), None)
    if taken and not force:
        raise UsageError(f"{taken} exists", fix="add --force to replace it, or name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--png {folder}: {error.strerror}", fix="name a folder that can be written") from error
    for file, content in made:
        write_file(file, content, force=force)
    return [file for file, _ in made]
