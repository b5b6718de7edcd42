"""A part of the view whose height is known before it is drawn."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.text import Text

from dsrun.datafiles import evaluate, toml_beside
from dsrun.system.terminal.display import duration, figure, precise_duration, printable

LOW = 34
_TABLES = toml_beside(__file__, "texts.toml")
_FUNCTIONS = {each.__name__: each for each in (duration, figure, filter, map, precise_duration, printable, round, str)}


@dataclass(frozen=True)
class MonitorSection:
    """`content` takes `height` rows; with 0 it is left out."""

    content: RenderableType
    height: int


EMPTY = MonitorSection(Text(), 0)


@dataclass(frozen=True, kw_only=True)
class TerminalSize:
    """The terminal: columns, rows (None: as many as it takes), and whether it shows more than ASCII."""

    width: int
    height: int | None = None
    ascii_only: bool = False

    @property
    def is_low(self) -> bool:
        """Whether the rows are few: figures share them, and no empty ones part the sections."""
        return self.height is not None and self.height < LOW


def print_rendered(console: Console, *content: RenderableType) -> None:
    """Print on stdout. Cells are padded to their columns' width; without a style the blanks at a line's end are
    nothing."""
    with console.capture() as captured:
        for each in content:
            console.print(each)
    for line in captured.get().splitlines():
        click.echo(line.rstrip(), color=True)


def plotted(pieces: Iterable[tuple[str, str | None]], styles: Mapping[str, str]) -> Text:
    """A `line_plot`, its curves in the styles of their names."""
    text = Text.assemble(*((piece, "dim" if name is None else styles[name]) for piece, name in pieces), no_wrap=True)
    text.rstrip()
    return text


def headed(room: TerminalSize, name: str, note: str, content: RenderableType, height: int) -> MonitorSection:
    """A section of `height` rows under its name, with an empty row above where there is room for it."""
    title = Text.assemble((name, "bold cyan"), (f"  {note}" if note else "", "dim"))
    title.no_wrap, title.overflow = True, "ellipsis"
    rows = [title, content] if room.is_low else [Text(), title, content]
    return MonitorSection(Group(*rows), height + len(rows) - 1)


def values(table: str, **names: Any) -> dict[str, Any]:
    """What the expressions of a table of texts.toml give, by name."""
    return {name: evaluate(text, _FUNCTIONS | names) for name, text in _TABLES[table].items()}


def texts(table: str, **names: Any) -> dict[str, Text]:
    """The texts of a table, each by itself, by name."""
    return {name: _styled(value) for name, value in values(table, **names).items()}


def line(table: str, **names: Any) -> Text:
    """The texts of a table, in one row."""
    return Text.assemble(*values(table, **names).values(), no_wrap=True, overflow="ellipsis")


def _styled(value: str | tuple[str, str] | list[str | tuple[str, str]]) -> Text:
    if isinstance(value, list):
        return Text.assemble(*value)
    return Text(value) if isinstance(value, str) else Text(value[0], style=value[1])
