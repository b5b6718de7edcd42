"""How dsrun speaks on stderr: one line a thing, coloured on a terminal unless NO_COLOR says otherwise.

Whether anybody listens changes nothing: a run goes on, and its exit code stands, when its terminal is closed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import click


def complain(message: str) -> None:
    """What went wrong."""
    _line("error", message, "red")


def remark(message: str) -> None:
    """What is worth knowing."""
    _line("note", message, "yellow")


def aside(line: str) -> None:
    """What belongs to the line before."""
    with heard_or_not(2):
        click.echo(line, err=True)


@contextmanager
def heard_or_not(fd: int) -> Iterator[None]:
    """What is written to `fd` in here need not arrive: the pipe may have no reader, or the disk no room."""
    try:
        yield
    except OSError:
        # What is left in Python's buffer would fail once more at the end, and change the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), fd)


def _line(kind: str, message: str, colour: str) -> None:
    # click leaves NO_COLOR (no-color.org) to the program.
    plain = bool(os.environ.get("NO_COLOR"))
    with heard_or_not(2):
        click.secho(f"{kind}: {message}", fg=colour, err=True, color=False if plain else None)
