"""What happened to rows on their way to tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Counts:
    """What happened to rows: how many were read, cut, and left out, and why."""

    rows: int = 0
    cut: int = 0
    cut_source: int = 0
    cut_target: int = 0
    incomplete: int = 0
    no_loss: int = 0
    first_incomplete: str = ""
    first_no_loss: str = ""

    def add(self, other: dict[str, Any]) -> None:
        """Sum numbers; the first place that was seen stays."""
        for name, value in other.items():
            mine = getattr(self, name)
            setattr(self, name, mine + value if isinstance(mine, int) else mine or value)

    def notices(self, split: str, limit: int) -> list[str]:
        """What the user should know about rows that were left out."""
        said = []
        if self.incomplete:
            said.append(
                f"{split}: {self.incomplete:,} of {self.rows:,} rows lack a text and are left out "
                f"(the first: {self.first_incomplete})"
            )
        if self.no_loss:
            said.append(
                f"{split}: {self.no_loss:,} of {self.rows:,} rows have nothing to learn from within {limit:,} "
                f"tokens and are left out (the first: {self.first_no_loss})"
            )
        return said
