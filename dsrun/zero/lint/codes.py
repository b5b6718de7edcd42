"""Every code a finding can have, and the reporter that collects findings. docs/config-check.md shows the table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from dsrun.datafiles import toml_beside
from dsrun.findings.finding import Finding, Level
from dsrun.zero import schema
from dsrun.zero.lint.source import Position, Source, dotted


class Code(NamedTuple):
    """What a code stands for. `stops`: what does not run with an error of it, and when."""

    levels: str
    meaning: str
    stops: str


CODES = {name: Code(**row) for name, row in toml_beside(__file__).items()}


def printable(text: str) -> str:
    """The text with halves of surrogate pairs, which JSON can hold and no terminal takes, written as escapes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text


@dataclass
class Findings:
    """Findings about one file, each at a path in it. `file` is its name as the user wrote it."""

    source: Source
    file: str
    rows: list[tuple[Position, Finding]] = field(default_factory=list)

    def error(self, code: str, path: schema.Path, message: str, fix: str = "") -> None:
        """DeepSpeed, or the Trainer before it, does not run with this."""
        self.add("error", code, path, message, fix)

    def warning(self, code: str, path: schema.Path, message: str, fix: str = "") -> None:
        """It runs, but hardly as it is meant."""
        self.add("warning", code, path, message, fix)

    def info(self, code: str, path: schema.Path, message: str, fix: str = "") -> None:
        """Worth knowing."""
        self.add("info", code, path, message, fix)

    def add(self, level: Level, code: str, path: schema.Path, message: str, fix: str = "") -> None:
        """Raises ValueError for a code or level that the table of codes does not have."""
        self.at(self.source.position(path), level, code, message, fix, name=dotted(path))

    def at(self, position: Position, level: Level, code: str, message: str, fix: str = "", *, name: str = "") -> None:
        """A finding at a place in the text; `name` is the key's path, if it has one."""
        if level not in CODES[code].levels:
            raise ValueError(f"{code} is never of level {level}")
        place = f"{self.file}:{position.line}" if name else f"{self.file}:{position}"
        where = f"{name} ({place})" if name else place
        message, fix, where = printable(message), printable(fix), printable(where)
        self.rows.append((position, Finding(level=level, code=code, message=message, fix=fix, where=where)))

    def findings(self) -> list[Finding]:
        """Everything that was found, in the order of the file and without repetitions."""
        ordered = sorted(self.rows, key=lambda row: (row[0].line, row[0].column))
        return list(dict.fromkeys(finding for _, finding in ordered))
