"""The help of all commands has one style: lower case, no full stop."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from dsrun.cli.main import cli
from dsrun.recipe.flags import own_flags

NAMES = ("Adam", "Muon", "Ulysses", "Hub", "Weights & Biases")


def _help_lines(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
    """What is described -> its one-line description: options, and the entries of lists of commands."""
    ctx = click.Context(command)
    for each in command.get_params(ctx):
        if isinstance(each, click.Option) and not each.hidden:
            yield f"{path} {each.opts[-1]}", each.help or ""
    if not isinstance(command, click.Group):
        return
    lazy = getattr(command, "lazy", {})
    for name in command.list_commands(ctx):
        found = command.get_command(ctx, name)
        assert found is not None
        yield f"{path} {name}", lazy[name][1] if name in lazy else found.get_short_help_str()
        yield from _help_lines(found, f"{path} {name}")


def _pages(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
    """Command -> its whole help."""
    ctx = click.Context(command, info_name=path)
    yield path, command.get_help(ctx)
    for name in command.list_commands(ctx) if isinstance(command, click.Group) else ():
        found = command.get_command(ctx, name)
        assert found is not None
        yield from _pages(found, f"{path} {name}")


PAGES = dict(_pages(cli, "dsrun"))
LINES = {**dict(_help_lines(cli, "dsrun")), **{f"train {flag.shown}": flag.help for flag in own_flags().values()}}


@pytest.mark.parametrize("described", LINES)
def test_help_is_lower_case_without_a_full_stop(described: str) -> None:
    line = LINES[described]
    assert line, "has no help"
    assert not line.endswith(".")
    first = line.split()[0]
    # An acronym or a flag (ZeRO, GPU, --lr) has no lower-case form.
    assert first[:1].islower() or not first[1:].islower() or line.startswith(NAMES)


@pytest.mark.parametrize("described", LINES)
def test_help_says_nothing_twice(described: str) -> None:
    clauses = LINES[described].split("; ")
    assert len(clauses) == len(set(clauses))


@pytest.mark.parametrize("path", PAGES)
def test_help_has_no_literal_escapes(path: str) -> None:
    """A backslash in a text is click's mark of a paragraph, or a new line, that has not become one."""
    assert PAGES[path].startswith(f"Usage: {path} ")
    assert not re.search(r"\\[a-zA-Z0-9]|\x08", PAGES[path])
