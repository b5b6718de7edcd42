"""What commands write: tables and JSON on stdout, coloured lines on stderr, and the file that a user named.

A closed terminal changes neither a run nor its exit code.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsrun.errors import UsageError
from dsrun.system import variables
from dsrun.system.display import cells, masked, padded, printable, without_tokens
from dsrun.system.files import replacing

if TYPE_CHECKING:
    from dsrun.findings.finding import Finding

FORMAT_VERSION = 1
WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def write_file(path: Path, content: bytes, *, force: bool, executable: bool = False) -> None:
    """Write `content` into `path`. A link stays a link, a file keeps its permissions, and a device or a named pipe is
    written to and never replaced.

    Raises UsageError for a folder, for a file without `force`, for a read-only one, and for what cannot be written.
    """
    try:
        mode = path.stat().st_mode if path.exists() else None
        if mode is not None and stat.S_ISDIR(mode):
            raise UsageError(f"{path} is a folder", fix="name a file")
        if mode is not None and not stat.S_ISREG(mode):
            path.write_bytes(content)
            return
        if mode is not None and not force:
            raise UsageError(f"{path} exists", fix="add --force to replace it")
        if mode is not None and not mode & WRITABLE:
            raise UsageError(f"{path} is read-only", fix="name another file, or make it writable")
        with replacing(path.resolve()) as partial:
            partial.write_bytes(content)
            mode = partial.stat().st_mode if mode is None else mode
            # Whoever may read a script may run it.
            partial.chmod(stat.S_IMODE(mode | (mode & 0o444) >> 2 if executable else mode))
    except (OSError, RuntimeError) as error:  # the latter by resolve(), for a loop of links
        why = error.strerror if isinstance(error, OSError) else "too many levels of symbolic links"
        raise UsageError(f"{path}: cannot be written: {why}", fix="name a file in a folder that exists") from error


def write_output(text: str, name: str | None, *, force: bool) -> None:
    """Write `text` to stdout, or into the file that --output names, as `write_file` does; in UTF-8 either way."""
    content = text.encode("utf-8")
    if name is None:
        click.echo(content, nl=False)
    else:
        write_file(Path(name), content, force=force)


def print_table(rows: Iterable[Sequence[str]]) -> None:
    """Print rows of cells with aligned columns."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(padded(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_fields(fields: Iterable[tuple[str, str]], *, width: int) -> None:
    """Print "name: value" lines, values aligned at column `width`; an empty value prints nothing."""
    for name, value in fields:
        if value:
            print_line(f"{name + ':':<{width}}{value}")


def print_json(content: dict[str, Any]) -> None:
    """Print what `--format json` gives: `content`, in which findings and other dataclasses may be, after the version of
    its format."""
    click.echo(json_text(content), nl=False)


def json_text(content: dict[str, Any]) -> str:
    """As `print_json` prints it."""
    return json.dumps({"version": FORMAT_VERSION, **content}, indent=2, default=_as_json) + "\n"


def _as_json(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return value.as_dict() if hasattr(value, "as_dict") else asdict(value)
    return os.fspath(value)


def command_lines(argv: Sequence[str], changes: Mapping[str, str | None], folder: Path | None = None) -> list[str]:
    """The changes of the environment (None: unset), a change into `folder`, and a command, ready for a shell."""
    lines = [f"unset {k}" if v is None else f"export {k}={shlex.quote(v)}" for k, v in sorted(changes.items())]
    return [*lines, *([] if folder is None else [f"cd {shlex.quote(str(folder))}"]), command_line(argv)]


def command_line(argv: Sequence[str]) -> str:
    """A command for a shell, without its access tokens."""
    return shlex.join(masked(argv))


def print_line(text: str = "") -> None:
    """Print a line on stdout in which foreign text may stand."""
    click.echo(printable(text))


def print_findings(findings: Iterable[Finding], *, total: str = "", places: bool = True) -> None:
    """Print findings on stdout, and with `total`, what they are about, how many there are of each level."""
    from dsrun.findings.show import finding_lines, total_line  # most commands have none

    found = list(findings)
    for line in finding_lines(found, places=places):
        click.echo(line)
    if total:
        print_line(total_line(total, found))


def print_advice(findings: Iterable[Finding]) -> None:
    """Print findings on stderr, beside the product of a command: a line for each, an error or a note."""
    for each in findings:
        from dsrun.findings.show import shown  # most commands have none

        (print_error if each.level == "error" else print_note)(shown(each).line)


def print_error(message: str) -> None:
    """Print an error on stderr."""
    _line("error", message, "red")


def print_note(message: str) -> None:
    """Print a note on stderr."""
    _line("note", message, "yellow")


def print_detail(line: str) -> None:
    """Print a line on stderr that belongs to the one before."""
    if _is_json():
        for each in filter(str.strip, line.splitlines()):
            _write_json(each.strip(), "detail")
        return
    with ignore_closed_stream(2):
        click.echo(printable(line, keep="\t\n"), err=True)


@contextmanager
def ignore_closed_stream(fd: int) -> Iterator[None]:
    """Ignore failures to write to `fd`: the pipe may have no reader, or the disk no room."""
    try:
        yield
    except OSError:
        # What is left in Python's buffer would fail once more at the end, and change the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), fd)


def _is_json() -> bool:
    return os.environ.get(variables.LOG_FORMAT) == "json"


def _write_json(message: str, action: str) -> None:
    """With --log-format json: write one line of it to stderr."""
    from dsrun.system.log_format import ecs_line, write_stderr  # few processes write it

    error = action == "error"
    line = ecs_line(message, action=action, level="error" if error else "info", outcome="failure" if error else None)
    with ignore_closed_stream(2):
        write_stderr(line.encode())


def _line(kind: str, message: str, colour: str) -> None:
    if _is_json():
        _write_json(message, kind)
        return
    # click leaves NO_COLOR (no-color.org) to the program.
    plain = bool(os.environ.get("NO_COLOR"))
    with ignore_closed_stream(2):
        click.secho(
            f"{kind}: {without_tokens(printable(message))}", fg=colour, err=True, color=False if plain else None
        )
