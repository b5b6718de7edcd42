"""What commands write: tables and JSON on stdout, coloured lines on stderr, and the file that a user named.

A closed terminal changes neither a run nor its exit code."""

import json
import os
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

import click

from dsrun.errors import UsageError
from dsrun.refusals import Refusals

if TYPE_CHECKING:
    from pathlib import Path

    from dsrun.findings.finding import Finding

FORMAT_VERSION = 1
WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
refusal = Refusals(__file__, "refusals.toml").error
"""What commands refuse, in the words of refusals.toml beside this module."""


def write_file(path: "Path", content: bytes, *, force: bool, executable: bool = False) -> None:
    """Write `content` into `path`. A link stays a link, a file keeps its permissions, and a device or a named pipe is
    written to and never replaced.

    Raises UsageError for a folder, for a file without `force`, for a read-only one, and for what cannot be written."""
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
        from dsrun.system.files import replacing  # not for what goes to stdout

        with replacing(path.resolve()) as partial:
            partial.write_bytes(content)
            mode = partial.stat().st_mode if mode is None else mode
            # Whoever may read a script may run it.
            partial.chmod(stat.S_IMODE(mode | (mode & 0o444) >> 2 if executable else mode))
    except (OSError, RuntimeError) as error:  # the latter by resolve(), for a loop of links
        why = error.strerror if isinstance(error, OSError) else "too many levels of symbolic links"
        raise UsageError(f"{path}: cannot be written: {why}", fix="name a file in a folder that exists") from error


def refuse_file(path: "Path", flag: str, *, force: bool) -> None:
    """Raise UsageError before any work for a file of this flag that could not be written after it."""
    from dsrun.refusals import Refusals  # not for what goes to stdout

    names = {"path": path, "flag": flag, "force": force, "access": os.access, "mode": os.W_OK | os.X_OK}
    Refusals(__file__).check("file", **names)


def write_output(text: str, name: str | None, *, force: bool) -> None:
    """Write `text` to stdout, or into the file that --output names, as `write_file` does; in UTF-8 either way."""
    content = text.encode("utf-8")
    if name is None:
        click.echo(content, nl=False)
    else:
        from pathlib import Path  # not for stdout

        write_file(Path(name), content, force=force)


def evaluated(table: Mapping[str, str], **names: Any) -> dict[str, str]:
    """The texts of a table of a TOML file, which are Python expressions of these names, and of `str`, `sum`, `sorted`
    and `size`."""
    from dsrun.datafiles import evaluate  # not for JSON and files
    from dsrun.system.terminal.display import size_text

    names |= {"str": str, "sum": sum, "sorted": sorted, "size": size_text}
    return {name: evaluate(text, names) for name, text in table.items()}


def print_table(rows: Iterable[Sequence[str]], *, head: bool = True) -> None:
    """Print rows of cells with aligned columns; on a terminal, what does not fit folds below the rest of its row, with
    `head` by the names of the first row."""
    # Not for JSON and files.
    from dsrun.system.terminal.display import aligned_rows, printable, terminal_width

    shown = [[printable(cell) for cell in row] for row in rows]
    for line in aligned_rows(shown, terminal_width(sys.stdout), head=head):
        click.echo(line)


def print_fields(fields: Iterable[tuple[str, str]], *, width: int) -> None:
    """Print "name: value" lines, values aligned at column `width`; an empty value prints nothing."""
    for name, value in fields:
        if value:
            print_line(f"{name + ':':<{width}}{value}", hang=width)


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


def print_line(text: str = "", *, hang: int | None = None) -> None:
    """Print a line on stdout in which foreign text may stand; on a terminal it ends between words, and goes on `hang`
    columns in."""
    # Not for JSON and files.
    from dsrun.system.terminal.display import fitted, printable, terminal_width

    click.echo(fitted(printable(text), terminal_width(sys.stdout), hang=hang))


def print_commands(meanings: Mapping[str, str]) -> None:
    """Print commands on stdout with comments beside them, so that each can be copied whole."""
    # Few commands print another.
    from dsrun.system.terminal.display import cells, command_text, padded, printable, terminal_width

    size = max(map(cells, map(printable, meanings)), default=0)
    for command, meaning in meanings.items():
        click.echo(command_text(padded(printable(command), size), terminal_width(sys.stdout), comment=meaning))


def print_findings(findings: "Iterable[Finding]", *, total: str = "", places: bool = True) -> None:
    """Print findings on stdout, and with `total`, what they are about, how many there are of each level."""
    from dsrun.findings.show import finding_lines, total_line  # most commands have none
    from dsrun.system.terminal.display import terminal_width

    found = list(findings)
    for line in finding_lines(found, places=places, width=terminal_width(sys.stdout)):
        click.echo(line)
    if total:
        print_line(total_line(total, found))


def print_advice(findings: "Iterable[Finding]") -> None:
    """Print findings on stderr, beside the product of a command: a line for each, an error or a note."""
    for each in findings:
        from dsrun.findings.show import shown  # most commands have none
        from dsrun.system.terminal.stderr import print_error, print_note

        (print_error if each.level == "error" else print_note)(shown(each).line)
