"""The parts of docs/ and ds_configs/ that are generated from the code: `python -m tools.docs` writes them all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; a `|` within a cell is escaped, also in code, where GitHub's tables end a cell at it too."""
    lines = [" | ".join(cell.replace("|", "\\|") for cell in cells) for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join(f"| {line} |" for line in lines)
