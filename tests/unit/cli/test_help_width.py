"""The width of help is that of the terminal, as click measures it with shutil."""

from __future__ import annotations

import shutil
import sys

import click
import pytest

from dsrun.cli.options import Command


class Terminal:
    """A stdout whose file descriptor is that of a terminal, or of none."""

    def __init__(self, number: int) -> None:
        self.number = number

    def fileno(self) -> int:
        return self.number


@pytest.mark.parametrize("columns", [None, "", "wide", "0", "-5", "30", "66", "300"])
@pytest.mark.parametrize("terminal", ["a pipe", "closed", "none", "70", "0"])
def test_help_is_as_wide_as_that_of_click(columns, terminal, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    if terminal.isdigit():
        size = shutil.os.terminal_size((int(terminal), 24))
        monkeypatch.setattr("os.get_terminal_size", lambda _number: size)
    monkeypatch.setattr(sys, "__stdout__", None if terminal == "none" else Terminal(-1 if terminal == "closed" else 1))
    help_text = "x " * 200
    expected = click.Context(click.Command("c", help=help_text)).get_help()
    command = Command("c", help=help_text)
    found = command.context_class(command).get_help()
    # Only the description of --help differs.
    assert found.partition("Options")[0] == expected.partition("Options")[0]
