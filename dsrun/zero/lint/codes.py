"""Every code a finding can have, the reporter that collects findings, and the checks that are a condition each: those
of checks.toml, which says what its conditions may name. docs/config-check.md shows the table."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

from dsrun.datafiles import evaluate, toml_beside
from dsrun.errors import nearest
from dsrun.findings.finding import Finding, Level, finding_of, text_of
from dsrun.messages import Message
from dsrun.zero import schema
from dsrun.zero.lint.source import JsonSource, TextPosition, dotted, finite
from dsrun.zero.rules import names_of
from dsrun.zero.schema import Path, blocks, optimizer_params, schedulers, shown, torch_optimizers
from dsrun.zero.view import MISSING, ConfigView


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


class ConfigCheck(NamedTuple):
    """A row of checks.toml. `level`, `fix` and `values` are expressions, as `when` is."""

    key: str
    at: str
    when: str
    each: tuple[str, ...] = ("",)
    spelled: bool = False
    level: str = "None"
    fix: str = "None"
    values: Mapping[str, str] = {}

    def look(self, view: ConfigView, report: ConfigFindings) -> None:
        """Report where the condition holds."""
        for each in self.each:
            path: Path = tuple(filter(None, self.at.format(each=each).split(".")))
            block, name = dotted(path[:-1]), str(path[-1]) if path else ""
            if self.spelled:
                path = view.spelled(block, name)
            place = {"value": view.raw(*path), "block": block, "name": name, "each": each}
            names = names_of(view, read_checks()["terms"], **_NAMES, **place)
            if evaluate(self.when, names):
                level, fix = evaluate(self.level, names), evaluate(self.fix, names)
                values = {key: evaluate(value, names) for key, value in self.values.items()}
                report.add(self.key, path, level=level, fix=fix, **values)


@cache
def read_checks() -> dict[str, Any]:
    """The groups of checks.toml, and its terms."""
    found = toml_beside(__file__, "checks.toml")
    return {"terms": found.pop("terms")} | {
        group: tuple(ConfigCheck(**row) for row in rows) for group, rows in found.items()
    }


def checks_of(group: str) -> Callable[[ConfigView, ConfigFindings], None]:
    """What looks for everything of a group of checks.toml."""

    def look(view: ConfigView, report: ConfigFindings) -> None:
        for check in read_checks()[group]:
            check.look(view, report)

    return look


def _nearest_quoted(value: Any, known: Iterable[str]) -> Message | None:
    match = nearest(str(value), known)
    return text_of("repair.quoted", match=match) if match else None


def _unquoted(value: Any) -> Message | None:
    """The number that a text is."""
    number = finite(value)
    return None if number is None else text_of("repair.unquoted_number", value=number)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _are_betas(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(b, int | float) and 0 <= b < 1 for b in value)


def _is_int_to_python(value: Any) -> bool:
    try:
        int(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


_BUILTIN = (isinstance, bool, dict, float, int, list, str)
_OWN = (
    _nearest_quoted, _unquoted, _are_texts, _are_betas, _is_int_to_python, blocks, optimizer_params, schedulers, shown,
    text_of, torch_optimizers,
)  # fmt: skip
_NAMES = {each.__name__.lstrip("_"): each for each in (*_BUILTIN, *_OWN)} | {"MISSING": MISSING}
