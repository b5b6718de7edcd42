"""How a command's option is declared: a dataclass field whose metadata carries everything that is derived from it."""

from __future__ import annotations

from dataclasses import Field, field, fields
from typing import Any


def option(
    default: Any,
    help: str,
    *,
    group: str | None = None,
    flag: str | None = None,
    aliases: tuple[str, ...] = (),
    metavar: str | None = None,
    choices: tuple[str, ...] | None = None,
    least: float | None = None,
    most: float | None = None,
    **own: Any,
) -> Any:
    """Declare one option.

    `group` is its heading in --help and in docs/; without one it is under that of the option above. `flag` is its name
    on the command line and in run.yaml where that is not the field's; `aliases` are further names there. `least` and
    `most` bound a number, both included. `own` is what only one command has: the class of options that uses it
    documents it.
    """
    common = {"help": help, "group": group, "flag": flag, "aliases": aliases, "metavar": metavar}
    meta = {**common, "choices": choices, "least": least, "most": most, **own}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=meta)
    return field(default=default, metadata=meta)


def key_of(each: Field[Any]) -> str:
    """The name of an option in run.yaml."""
    return str(each.metadata["flag"] or each.name)


def flag_of(each: Field[Any]) -> str:
    """The flag of an option as a user writes it."""
    return "--" + key_of(each).replace("_", "-")


def value_kind(each: Field[Any]) -> str:
    """What an option takes, None aside: int, float, str, bool, list[str], tuple[str, ...]."""
    return str(each.type).removesuffix(" | None")


def by_group(spec: type) -> dict[str, list[Field[Any]]]:
    """The options of a dataclass under their groups, in the order of their declaration."""
    found: dict[str, list[Field[Any]]] = {}
    group = ""
    for each in fields(spec):
        group = each.metadata["group"] or group
        found.setdefault(group, []).append(each)
    return found
