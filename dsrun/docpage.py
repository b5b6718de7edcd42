"""The part of a page in docs/ that code writes: a table's Markdown, and its place between two markers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsrun.errors import UsageError

END = "<!-- end -->"


@dataclass(frozen=True)
class GeneratedPart:
    """What `python -m MODULE PAGE` writes between its markers of a page; `markdown` makes it anew."""

    module: str
    markdown: Callable[[], str]

    @property
    def begin(self) -> str:
        """The marker before it, which tells a reader what to run."""
        return f"<!-- generated: python -m {self.module} -->"

    def inserted(self, page: str) -> str:
        """The page with the generated part between its markers brought up to date.

        Raises UsageError when the markers are not there, each once and in order.
        """
        before, begin, rest = page.partition(self.begin)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise UsageError(f"the page has no generated part: {self.begin} … {END}")
        return f"{before}{self.begin}\n\n{self.markdown()}\n{END}{after}"

    def main(self, argv: Sequence[str]) -> None:
        """Print the generated part, or bring the page named by the first argument up to date."""
        if not argv:
            sys.stdout.write(self.markdown())
            return
        page = Path(argv[0])
        scratch = page.with_name(f".{page.name}.{os.getpid()}")
        scratch.write_text(self.inserted(page.read_text(encoding="utf-8")), encoding="utf-8")
        scratch.replace(page)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; a `|` within a cell is escaped, also in code, where GitHub's tables end a cell at it too."""
    lines = [" | ".join(cell.replace("|", "\\|") for cell in cells) for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join(f"| {line} |" for line in lines)
