"""A part of the view whose height is known before it is drawn."""

from dataclasses import dataclass

from rich.console import Group, RenderableType
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


def headed(room: TerminalSize, name: str, note: str, content: RenderableType, height: int) -> MonitorSection:
    """A section of `height` rows under its name, with an empty row above where there is room for it."""
    title = Text.assemble((name, "bold cyan"), (f"  {note}" if note else "", "dim"))
    title.no_wrap, title.overflow = True, "ellipsis"
    rows = [title, content] if room.is_low else [Text(), title, content]
    return MonitorSection(Group(*rows), height + len(rows) - 1)
