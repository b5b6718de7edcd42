"""The texts of findings, by code, from the TOML files in `text/`, and the finding of a code.

A table is a code; its tables are the variants of that code, where one code has several texts; its other strings are
parts that a check chooses among:

    [cores]
    message = "{cores} for {ranks}"
    adam = "Adam on the CPU needs more"

    [cores.few]
    level = "warning"
    message = "…: {why}"
    fix = "…"

`finding_of("cores", …)`, `finding_of("cores.few", why=text_of("cores.adam"), …)`. All codes are of one table, whichever
file they are in: a code has one home. A level that is not given is error.
"""

from functools import cache
from typing import Any

from dsrun.datafiles import toml_folder
from dsrun.findings.finding import Finding, Level
from dsrun.messages import Message


def finding_of(
    key: str, /, *, where: str = "", level: Level | None = None, fix: str | None = None, prefix: str = "", **values: Any
) -> Finding:
    """The finding of a code, or of its variant `code.variant`, with its texts filled with `values`.

    `level` and `fix` stand instead of those of the table; `prefix` before the code.
    """
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
