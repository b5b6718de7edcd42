"""Every code a finding can have, and the reporter that collects findings. docs/config-check.md shows the table."""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from dsrun.datafiles import toml_beside
from dsrun.findings.finding import Finding, Level, finding_of, text_of
from dsrun.zero import schema
from dsrun.zero.lint.source import JsonSource, TextPosition, dotted


class LintCode(NamedTuple):
    """What a code stands for. `stops`: what does not run with an error of it, and when."""

    levels: str
    meaning: str
    stops: str


CODES = {name: LintCode(**row) for name, row in toml_beside(__file__).items()}


def printable(text: str) -> str:
    """The text with halves of surrogate pairs, which JSON can hold and no terminal takes, written as escapes; the very
    same object where there are none, as a Message is translated."""
    shown = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if shown == text else shown


@dataclass
class ConfigFindings:
    """Findings about one file, each at a path in it. `file` is its name as the user wrote it."""

    source: JsonSource
    file: str
    rows: list[tuple[TextPosition, Finding]] = field(default_factory=list)

    def add(
        self,
        key: str,
        path: schema.Path,
        /,
        *,
        position: TextPosition | None = None,
        level: Level | None = None,
        fix: str | None = None,
        **values: Any,
    ) -> None:
        """The finding of a key of dsrun/findings/text/config.toml at a path in the file; `position` where it is at
        another place. A text may name the {key} that the path ends with, and when DeepSpeed stops: {eager}, {late}."""
        shared = {"key": path[-1] if path else "", "eager": text_of("stops.eager"), "late": text_of("stops.late")}
        self.put(finding_of(key, level=level, fix=fix, **shared | values), path, position)

    def put(self, finding: Finding, path: schema.Path, position: TextPosition | None = None) -> None:
        """A finding at a path. Raises ValueError for a code or level that the table of codes does not have."""
        if finding.level not in CODES[finding.code].levels:
            raise ValueError(f"{finding.code} is never of level {finding.level}")
        position, name = position or self.source.position(path), dotted(path)
        where = f"{name} ({self.file}:{position.line})" if name else f"{self.file}:{position}"
        message, fix, where = printable(finding.message), printable(finding.fix), printable(where)
        self.rows.append((position, replace(finding, message=message, fix=fix, where=where)))

    def findings(self) -> list[Finding]:
        """Everything that was found, in the order of the file and without repetitions."""
        ordered = sorted(self.rows, key=lambda row: (row[0].line, row[0].column))
        return list(dict.fromkeys(finding for _, finding in ordered))
