"""Lines on stderr: errors, notes and what belongs to them; as JSON with --log-format json.

A closed terminal changes neither a run nor its exit code."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import click

from dsrun.system import variables
from dsrun.system.terminal.display import printable
from dsrun.system.terminal.secrets import without_tokens

if TYPE_CHECKING:
    from dsrun.system.terminal.status_line import StatusLine

shown: "StatusLine | None" = None
"""What this process shows while nobody writes; see `dsrun.system.terminal.status_line`."""


def is_json(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether stderr takes JSON."""
    return environ.get(variables.LOG_FORMAT) == "json"


def print_error(message: str) -> None:
    """Print an error on stderr."""
    _line("error", message, "red")


def print_note(message: str) -> None:
    """Print a note on stderr."""
    _line("note", message, "yellow")


def print_detail(line: str, *, secret: bool = False, hang: int | None = None) -> None:
    """Print a line on stderr that belongs to the one before, on a terminal `hang` columns in from its second row on;
    with `secret` one that gives the user a new secret, which is not for logs."""
    if is_json():
        for each in filter(str.strip, line.splitlines()):
            _write_json(each.strip(), "detail")
        return
    with ignore_closed_stream(2), writing():
        shown = printable(line, keep="\t\n")
        # What is to be copied stays in one piece.
        click.echo(shown if secret else _fitted(without_tokens(shown), hang), err=True)


@contextmanager
def ignore_closed_stream(fd: int) -> Iterator[None]:
    """Ignore failures to write to `fd`: the pipe may have no reader, or the disk no room."""
    try:
        yield
    except OSError:
        # What is left in Python's buffer would fail once more at the end, and change the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), fd)


def writing(data: bytes = b"\n", *, line: bool = True) -> AbstractContextManager[None]:
    """Write `data` to stderr in here; `line`: whole lines, which do not go on with what stands there."""
    return shown.writing(data, line=line) if shown else nullcontext()


def say(what: str, more: str = "") -> None:
    """`what` is being done from now on, for whom nothing else tells; `more` says how far it is."""
    if shown:
        shown.say(what, more)


def _write_json(message: str, action: str) -> None:
    """With --log-format json: write one line of it to stderr."""
    from dsrun.system.terminal.log_format import ecs_line, write_stderr  # few processes write it

    error = action == "error"
    line = ecs_line(message, action=action, level="error" if error else "info", outcome="failure" if error else None)
    with ignore_closed_stream(2):
        write_stderr(line.encode())


def _fitted(text: str, hang: int | None) -> str:
    """On a terminal, `text` in lines that end between words."""
    if not (sys.stderr and sys.stderr.isatty()):
        return text
    from dsrun.system.terminal.display import fitted, terminal_width  # jobs and pipes do without

    return fitted(text, terminal_width(sys.stderr), hang=hang)


def _line(kind: str, message: str, colour: str) -> None:
    if is_json():
        _write_json(message, kind)
        return
    # click leaves NO_COLOR (no-color.org) to the program.
    plain = bool(os.environ.get("NO_COLOR"))
    text = _fitted(f"{kind}: {without_tokens(printable(message))}", len(kind) + 2)
    with ignore_closed_stream(2), writing():
        click.secho(text, fg=colour, err=True, color=False if plain else None)
