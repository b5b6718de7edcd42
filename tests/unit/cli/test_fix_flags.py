"""The commands that findings, causes and notes tell a user to give: their flags exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

import dsrun
from dsrun.cli.completion import training_flags
from dsrun.cli.main import COMMANDS, cli

TEXTS = Path(dsrun.__file__).parent
# A command's words end with its quotation mark, its line or clause, or where another program's begin.
_COMMAND = re.compile(rf"dsrun ({'|'.join(sorted(COMMANDS, key=len, reverse=True))})\b([^`'\"\n;,:()|]*)")
_FLAG = re.compile(r"(?<![\w-])--[A-Za-z][\w-]*")
_TRAINS = ("train", "prepare", "data")


def flags_of(name: str) -> set[str]:
    """Every flag of a command and of those below it."""
    context = click.Context(cli)
    command = cli.get_command(context, name)
    assert command is not None
    several = [command, *(command.commands.values() if isinstance(command, click.Group) else ())]
    known = {flag for one in several for each in one.get_params(context) for flag in (*each.opts, *each.secondary_opts)}
    if name in _TRAINS:
        known |= {flag for each in training_flags() for flag in (*each.opts, *each.secondary_opts)}
    return known | {"--help"}


def named_in(text: str) -> Iterator[tuple[str, str]]:
    """Each (command, flag) in a text."""
    for name, words in _COMMAND.findall(text):
        yield from ((name, flag) for flag in _FLAG.findall(words.partition(" -- ")[0]))


def test_flags_of_commands_in_texts_exist():
    found = {
        (str(file.relative_to(TEXTS)), *each)
        for file in TEXTS.rglob("*.toml")
        for each in named_in(file.read_text(encoding="utf-8"))
    }
    known = {name: flags_of(name) for name in {name for _, name, _ in found}}
    assert {("findings/text/shared.toml", "build-wheel", "--cpu")} <= found
    assert sorted(each for each in found if each[2] not in known[each[1]]) == []
