"""Flags that Transformers 5 no longer has, and what becomes of each: see removed.toml."""

from collections.abc import Callable, Collection
from dataclasses import replace
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
    ignored for a `reason`, or refused where there is a `fix`: what to write instead.
    """

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
    value without an equivalent.
    """
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
