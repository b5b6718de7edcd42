"""A part of the view whose height is known before it is drawn."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text


@dataclass(frozen=True)
class Section:
    """`content` takes `height` rows; with 0 it is left out."""

    content: RenderableType
    height: int


EMPTY = Section(Text(), 0)


def heading(name: str, note: str = "") -> RenderableType:
    """A section's name below an empty row."""
    return Group(
        Text(),
        Text.assemble((name, "bold cyan"), (f"  {note}" if note else "", "dim"), no_wrap=True, overflow="ellipsis"),
    )
