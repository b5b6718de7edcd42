"""Finding: the one shape of advice that every judging command yields, and the findings that are data.

Their texts come, by code, from the TOML files in `text/`. A table is a code; its tables are the variants of that code,
where one code has several texts; its other strings are parts that a check chooses among:

    [cores]
    message = "{cores} for {ranks}"
    adam = "Adam on the CPU needs more"

    [cores.few]
    level = "warning"
    message = "…: {why}"
    fix = "…"

`finding_of("cores", …)`, `finding_of("cores.few", why=text_of("cores.adam"), …)`. All codes are of one table, whichever
file they are in: a code has one home. A level that is not given is error.

Where its condition is data too, it is a row of conditions.toml beside the modules of a package: the `key` of its
finding and, where it is not always one, `when` it is: a Python expression of the names that the caller gives, and of
the file's `terms`, which are expressions themselves. So are `level`, `fix`, and the `values` of those words of its
texts that are not such names."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice
from typing import Any, Literal, get_args

from dsrun.datafiles import SubjectNames, evaluate, toml_beside, toml_folder
from dsrun.messages import PLACEHOLDER, Message

Level = Literal["error", "warning", "info"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""The worst first."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One result of a check: how bad, a stable code, what is wrong, what repairs it, and where it is."""

    level: Level
    code: str
    message: str
    fix: str = ""
    where: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The finding as plain JSON values."""
        return asdict(self)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Findings by level; those of one level stay in their order."""
    return sorted(findings, key=lambda each: LEVELS.index(each.level))


def errors_in(findings: Iterable[Finding]) -> list[Finding]:
    """Those of level error."""
    return [each for each in findings if each.level == "error"]


def has_errors(findings: Iterable[Finding]) -> bool:
    """Whether one is an error: what a command's exit code 3 means."""
    return any(each.level == "error" for each in findings)


def finding_of(
    key: str, /, *, where: str = "", level: Level | None = None, fix: str | None = None, prefix: str = "", **values: Any
) -> Finding:
    """The finding of a code, or of its variant `code.variant`, with its texts filled with `values`.

    `level` and `fix` stand instead of those of the table; `prefix` before the code."""
    row = text_table(key)
    return Finding(
        level=level or row.get("level", "error"),
        code=prefix + key.partition(".")[0],
        message=Message(row["message"], **values),
        fix=Message(row.get("fix", ""), **values) if fix is None else fix,
        where=where,
    )


def text_of(key: str, /, **values: Any) -> Message:
    """A part of a text, or a text that is not a finding: `code.name`, filled with `values`."""
    above, _, name = key.rpartition(".")
    return Message(text_table(above)[name], **values)


def text_table(key: str) -> dict[str, Any]:
    """The table of a code, or of a variant of it. Raises KeyError for another."""
    row: Any = tables()
    for name in key.split("."):
        row = row[name]
    return dict(row)


@cache
def tables() -> dict[str, Any]:
    """Every code with its texts."""
    return toml_folder(__file__, "text")


_FUNCTIONS = {"int": int, "len": len, "text_of": text_of}


def findings_where(module: str, group: str, /, **names: Any) -> Iterator[Finding]:
    """Those of all rows of a group that hold, beside a module given by its `__file__`."""
    table = toml_beside(module, "conditions.toml")
    known = SubjectNames(None, table.get("terms", {}), **_FUNCTIONS, **names)
    for row in table[group]:
        if evaluate(row.get("when", "True"), known):
            texts = text_table(row["key"])
            words = {found[1] for name in ("message", "fix") for found in PLACEHOLDER.finditer(texts.get(name, ""))}
            given = row.get("values", {})
            values = {word: evaluate(given.get(word, word), known) for word in words}
            level, fix = (evaluate(row.get(name, "None"), known) for name in ("level", "fix"))
            yield finding_of(row["key"], level=level, fix=fix, **values)


def first_where(module: str, group: str, /, **names: Any) -> Iterator[Finding]:
    """That of the first row of a group that holds, if any does."""
    return islice(findings_where(module, group, **names), 1)
