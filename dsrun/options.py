"""How a command's options are declared: fields of a dataclass, whose metadata is in a TOML file beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, fields
from types import MappingProxyType
from typing import Any, TypeVar

from dsrun.datafiles import toml_beside

Spec = TypeVar("Spec")
UNSET = {"group": None, "flag": None, "aliases": (), "metavar": None, "choices": None, "least": None, "most": None}


def described(module: str) -> Callable[[type[Spec]], type[Spec]]:
    """A decorator that gives each option of a dataclass the metadata of its table in the TOML file beside the module.

    `help` is its text; `group` its heading in --help and in docs/, without one that of the option above; `flag` its
    name on the command line and in run.yaml where that is not the field's; `aliases` are further names there; `choices`
    are its values, else `metavar` stands for one; `least` and `most` bound a number, both included. Other keys are the
    spec's own, and documented there.
    """

    def describe(spec: type[Spec]) -> type[Spec]:
        tables = toml_beside(module)
        for each in fields(spec):  # type: ignore[arg-type]
            table = tables[each.name].items()
            own = {key: tuple(value) if isinstance(value, list) else value for key, value in table}
            each.metadata = MappingProxyType({**UNSET, **own})
        return spec

    return describe


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
