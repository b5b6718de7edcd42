"""A part of the view whose height is known before it is drawn."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import click
from rich.console import Console, Group, RenderableType
from rich.text import Text

LOW = 34


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
