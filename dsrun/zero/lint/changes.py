"""The log of an upgrade, and the ways in which a key is rewritten."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dsrun.zero.lint.source import dotted
from dsrun.zero.schema import Path

Config = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """One thing that was rewritten: where, what, and why."""

    path: str
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what} ({self.why})"


@dataclass
class Log:
    """The changes so far."""

    changes: list[Change] = field(default_factory=list)

    def add(self, path: Path, what: str, why: str) -> None:
        """Note a change."""
        self.changes.append(Change(dotted(path), what, why))

    def leave_out(self, block: Config, path: Path, why: str) -> None:
        """Remove the key at the end of `path` from its block, if it is there."""
        if path[-1] in block:
            del block[str(path[-1])]
            self.add(path, "left out", why)

    def rename(self, block: Config, path: Path, new: str, why: str, *, taken: bool, holds: str) -> None:
        """Give the key at the end of `path` its new name, or leave it out where that is `taken` and `holds`."""
        if taken:
            self.leave_out(block, path, holds)
        elif path[-1] in block:
            replace_key(block, str(path[-1]), new, block[str(path[-1])])
            self.add(path, f"renamed to {new}", why)


def block_at(config: Config, *path: str) -> Config:
    """The object at a path; an empty one where there is none."""
    for key in path:
        found = config.get(key)
        config = found if isinstance(found, dict) else {}
    return config


def replace_key(block: Config, old: str, new: str, value: Any) -> None:
    """Put a key in the place of another."""
    rows = [(new, value) if key == old else (key, each) for key, each in block.items() if key != new or key == old]
    block.clear()
    block.update(rows)
