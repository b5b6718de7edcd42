"""Columns beside those that make a layout, as beside.toml has them: some are read where a row has them, some make a row
unusable, and all others are listed as not read."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dsrun.datafiles import toml_beside
from dsrun.errors import UsageError
from dsrun.system.files import parse_json

ColumnPairs = tuple[tuple[str, str], ...]

_TABLE = toml_beside(__file__)
EMPTY: tuple[Any, ...] = (None, "", "[]", [], {})
"""Values that say nothing; `[]` is a list in a CSV file."""


def beside(variety: str, columns: Sequence[str], not_these: Sequence[str]) -> tuple[ColumnPairs, ColumnPairs]:
    """For a variety of layout in beside.toml: (meaning, column) of what is read where a row has it, of several names
    the first that `columns` has; and (column, rule) of what may make a row unusable."""
    named = _TABLE["read"].get(variety, {}).items()
    known = {meaning: [name for name in names if name not in not_these] for meaning, names in named}
    read = ((key, next((each for each in names if each in columns), names[0])) for key, names in known.items() if names)
    rules = ((rule, each) for rule, each in _TABLE["refused"].items() if variety in each.get("layouts", [variety]))
    refused = ((name, rule) for rule, each in rules for name in each["columns"] if name not in not_these)
    return tuple(read), tuple(refused)


def refuse(refused: ColumnPairs, row: Mapping[str, Any], where: str) -> None:
    """Raise UsageError for a value that a rule of beside.toml refuses."""
    for column, rule in refused:
        # A value that differs from itself is NaN, pandas' missing value.
        if column not in row or (value := row[column]) in EMPTY or value != value:  # noqa: PLR0124
            continue
        known = _TABLE["refused"][rule]
        if known["value"] == "filled" or str(value).lower() == "false":
            raise UsageError(f"{where}: {column!r} {known['why']}", fix=known["fix"].format(column=column))


def tools_of(row: Mapping[str, Any], where: str) -> list[Any]:
    """The tools of a conversation; [] for none. Functions, as OpenAI had them first, become tools."""
    functions = structure_of(row, "functions", list, where) or []
    wrapped = [{"type": "function", "function": each} for each in functions]
    return [*(structure_of(row, "tools", list, where) or []), *wrapped]


def history_of(row: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """The earlier turns of Alpaca's rows, [[what the user says, what the assistant answers], …], as messages."""
    turns = structure_of(row, "history", list, where) or []
    for turn in turns:
        if not isinstance(turn, list | tuple) or [type(text) for text in turn] != [str, str]:
            raise UsageError(f"{where}: a turn of 'history' is not a pair of texts", fix='[["user", "assistant"], …]')
    roles = ("user", "assistant")
    return [{"role": role, "content": text} for turn in turns for role, text in zip(roles, turn, strict=True)]


def structure_of(row: Mapping[str, Any], name: str, kind: type, where: str) -> Any:
    """A list or dictionary, also as JSON in a text; None for none."""
    value = row.get(name)
    if isinstance(value, str):
        try:
            value = parse_json(value) if value.strip() else None
        except json.JSONDecodeError as error:
            raise UsageError(f"{where}: column {name!r} is not JSON ({error.msg})") from error
    if value is not None and not isinstance(value, kind):
        raise UsageError(f"{where}: column {name!r} contains a {type(value).__name__}, not a {kind.__name__}")
    return without_none(value)


def without_none(value: Any) -> Any:
    """A copy without the dictionary entries that are None, at every depth."""
    if isinstance(value, Mapping):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [without_none(item) for item in value]
    return value
