"""How dsrun speaks on stderr: one line a thing, coloured on a terminal unless NO_COLOR says otherwise."""

from __future__ import annotations

import os

import click


def complain(message: str) -> None:
    """What went wrong."""
    _line("error", message, "red")


def remark(message: str) -> None:
    """What is worth knowing."""
    _line("note", message, "yellow")


def _line(kind: str, message: str, colour: str) -> None:
    # click leaves NO_COLOR (no-color.org) to the program.
    plain = bool(os.environ.get("NO_COLOR"))
    click.secho(f"{kind}: {message}", fg=colour, err=True, color=False if plain else None)
