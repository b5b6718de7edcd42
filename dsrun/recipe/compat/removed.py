"""Flags that dsrun does not have: those that Transformers 5 has removed, and what becomes of each (removed.toml); flags
and keys of other tools, and what is written here instead of each (other_tools.toml)."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, NamedTuple

from dsrun.datafiles import toml_beside
from dsrun.errors import UsageError
from dsrun.recipe.flags import SECRETS, FlagKind, RecipeFlag, by_spelling, shown_value
from dsrun.recipe.parsed_value import ParsedValue, RejectedValue, check_choice

SAME = object()
TESTS: dict[str, Callable[[Any], bool]] = {
    "0 ≤ R < 1": lambda value: 0 <= value < 1,
    "true or false": lambda value: isinstance(value, bool),
    "below 0": lambda value: value < 0,
    "empty": lambda value: not value,
}


class RemovedCase(NamedTuple):
    """What becomes of some values of a removed flag.

    `label` names those values for the reference (empty: every other value) and `holds` tests for them. `becomes` is the
    flag that takes over, with the same `value` or a fixed one; `weak`: it gives way to that flag. Otherwise the flag is
    ignored for a `reason`, or refused where there is a `fix`: what to write instead."""

    label: str
    holds: Callable[[Any], bool]
    becomes: str = ""
    value: Any = SAME
    weak: bool = False
    reason: str = ""
    fix: str = ""

    @property
    def advice(self) -> str:
        """The fix as a sentence."""
        return f"write {self.fix}" if self.fix.startswith("--") else self.fix


class RemovedFlag(NamedTuple):
    """One row: the old flag, what it took, and the cases of its value in the order they are tried."""

    name: str
    kind: FlagKind
    cases: tuple[RemovedCase, ...]

    def case(self, value: Any) -> RemovedCase:
        """The case of this value."""
        return next(case for case in self.cases if case.holds(value))


def _case(row: dict[str, Any]) -> RemovedCase:
    label = row.pop("when", "")
    if "is" in row:
        expected = row.pop("is")
        return RemovedCase(shown_value("", expected), lambda value: value == expected, **row)
    return RemovedCase(label, TESTS.get(label, lambda _: True), **row)


@cache
def removed_flags() -> dict[str, RemovedFlag]:
    """The rows by the name of the old flag."""
    rows = toml_beside(__file__)
    kinds: dict[str, FlagKind] = {name: row.pop("kind") for name, row in rows.items()}
    return {
        name: RemovedFlag(name, kinds[name], tuple(map(_case, row.get("cases", [row])))) for name, row in rows.items()
    }


@cache
def vocabulary() -> dict[str, RecipeFlag]:
    """Every spelling that is understood: the flags of today and, as flags of their own, the removed ones."""
    old = {
        row.name: RecipeFlag(name=row.name, owner="hf", key=row.name, kind=row.kind, default=None, optional=True)
        for row in removed_flags().values()
    }
    return old | by_spelling()


def translate(given: ParsedValue, present: Collection[str]) -> tuple[ParsedValue | None, str | None]:
    """What a given value means today, and the notice that says so.

    `present` names the flags given beside it. A flag of today comes back as it is. Raises UsageError for a
    value without an equivalent."""
    row = removed_flags().get(given.name)
    if row is None:
        return given, None
    opening = f"{given.where} is no longer a flag"
    case = row.case(given.value)
    if case.fix:
        raise UsageError(f"{opening}: {case.reason}", fix=case.advice)
    if not case.becomes:
        return None, f"{opening}: ignored, {case.reason}"
    flag = by_spelling()[case.becomes]
    if case.weak and flag.name in present:
        return None, f"{opening}: gives way to {flag.shown}"
    value = given.value if case.value is SAME else case.value
    shown = "" if flag.name in SECRETS else f" {shown_value(flag.name, value)}"
    if flag.choices is not None:
        try:
            check_choice(value, flag.choices)
        except RejectedValue as error:
            raise UsageError(f"{given.where}: {error}") from None
    taken = replace(given, name=flag.name, value=value, where=f"{given.where} (taken as {flag.shown})")
    return taken, f"{opening}: taken as {flag.shown}{shown}"


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
    content = toml_beside(__file__, "other_tools.toml")
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
