"""Flags and keys of other tools, and what is written here instead of each: see other_tools.toml."""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from dsrun.datafiles import toml_beside
from dsrun.errors import UsageError
from dsrun.recipe.flags import by_spelling

# An answer that names one flag and no more: with the same value, with the one that it says, or a switch.
LINE = re.compile(r"write --([\w-]+)(?: (?:[A-Z]+…?|([a-z]\w*)))?")
OUTCOMES = {"to", "set", "by", "table", "refuse", "note", "kinds", "cases"}
"""What becomes of a key of an imported file: its value goes `to` a flag; flags are `set`, "$" being the value; a
function of imported_values.py (`by`) or another `table` reads it; it is a reason to `refuse`, or to `note`; it tells
the `kinds` of data. `cases` are values (`is` one, or one of a list; `like` a pattern) of which something else becomes,
or nothing, where dsrun does the same."""


@cache
def tables() -> dict[str, dict[str, dict[str, Any]]]:
    """The rows by tool, or part of a tool's file, and by key, in which * and ? stand for what they do in file names."""
    content = toml_beside(__file__)
    return {tool: {name: _row(row) for name, row in rows.items()} for tool, rows in content.items()}


def _row(row: str | dict[str, Any]) -> dict[str, Any]:
    """A row as a mapping; an answer that is one line of ours says what becomes of the key in an imported file too."""
    full = {"answer": row} if isinstance(row, str) else dict(row)
    if not OUTCOMES & full.keys() and (line := LINE.fullmatch(full["answer"])):
        name = line[1].replace("-", "_")
        full |= {"cases": [{"is": False}, {"set": {name: line[2]}}]} if line[2] else {"to": name}
    return full


def row_of(table: Mapping[str, dict[str, Any]], name: str) -> dict[str, Any] | None:
    """The row of a key, by its name or by a pattern."""
    return table.get(name) or next((row for key, row in table.items() if "*" in key and fnmatchcase(name, key)), None)


@cache
def other_tools() -> dict[str, tuple[str, str]]:
    """The tool and what to write instead, by the name of its flag with underscores, or a pattern of names."""
    return {
        name: (tool, text)
        for tool, rows in tables().items()
        for name, row in rows.items()
        if "'" not in tool and name not in by_spelling()
        if (text := str(row.get("answer") or row.get("refuse") or row.get("note") or ""))
    }


def answer(where: str, name: str) -> UsageError | None:
    """The error for a flag that dsrun does not have and another tool has; None for any other name. `where` is how the
    user wrote it."""
    from difflib import get_close_matches  # for a wrong flag only

    known = other_tools()
    if name not in known and get_close_matches(name, by_spelling(), 1, 0.9):
        return None  # a slip of the hand, which a pattern may fit too
    found = row_of({key: {"of": row} for key, row in known.items()}, name)
    return UsageError(f"{where} is not a flag of dsrun, but of {found['of'][0]}", fix=found["of"][1]) if found else None
