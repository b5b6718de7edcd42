"""How a command's options are declared: fields of a dataclass, whose metadata is in a TOML file beside it.

And how such a dataclass is made of what somebody wrote on the command line and in a section of run.yaml."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import Field, fields
from functools import cache
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from dsrun.datafiles import SubjectNames, evaluate, toml_beside
from dsrun.errors import UsageError, did_you_mean

Spec = TypeVar("Spec")
YES = frozenset({"true", "yes", "on", "1"})
NO = frozenset({"false", "no", "off", "0"})
_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")
# SLURM and Kubernetes keep their numbers in 32 bits; SLURM makes others of longer ones, without a word.
MAX_NUMBER = 2**31 - 1
UNSET = {"group": None, "flag": None, "aliases": (), "metavar": None, "choices": None, "least": None, "most": None}


def described(module: str) -> Callable[[type[Spec]], type[Spec]]:
    """A decorator that gives each option of a dataclass the metadata of its table in the TOML file beside the module.

    `help` is its text; `group` its heading in --help and in docs/, without one that of the option above; `flag` its
    name on the command line and in run.yaml where that is not the field's; `aliases` are further names there; `choices`
    are its values, else `metavar` stands for one; `least` and `most` bound a number, both included. Other keys are the
    spec's own, and documented there. The options have the order of the tables. One of a base class needs no table: it
    then comes last, under the heading of its own; with one it has what this changes."""

    def describe(spec: type[Spec]) -> type[Spec]:
        tables = toml_beside(module)
        found = {each.name: copy(each) for each in fields(spec)}  # type: ignore[arg-type]
        spec.__dataclass_fields__ = {name: found[name] for name in (*tables, *found)}  # type: ignore[attr-defined]
        for name, each in found.items():
            own = {
                key: tuple(value) if isinstance(value, list) else value for key, value in tables.get(name, {}).items()
            }
            placed = {"group": None} if name in tables else {}
            each.metadata = MappingProxyType({**UNSET, **each.metadata, **placed, **own})
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
    return type_text(each).removesuffix(" | None")


def type_text(each: Field[Any]) -> str:
    """The type of a field as it is written: int, str | None, tuple[str, ...]."""
    return each.type.__name__ if isinstance(each.type, type) else str(each.type).replace("typing.", "")


def by_group(spec: type) -> dict[str, list[Field[Any]]]:
    """The options of a dataclass under their groups, in the order of their declaration."""
    found: dict[str, list[Field[Any]]] = {}
    group = ""
    for each in fields(spec):
        group = each.metadata["group"] or group
        found.setdefault(group, []).append(each)
    return found


class OptionValue(NamedTuple):
    """One option as somebody wrote it: its field, the values, and where they stand ("run.yaml:4: slurm.nodes")."""

    name: str
    values: tuple[str, ...]
    where: str


@cache
def _spellings(spec: type) -> dict[str, str]:
    """The field of every key that a section of run.yaml takes for `spec`, with underscores."""
    return {key: each.name for each in fields(spec) for key in (each.name, *each.metadata["aliases"])}


def section_value(spec: type, section: str, key: str, values: Iterable[str], where: str, *, page: str) -> OptionValue:
    """The value of `key` in a section of run.yaml. Raises UsageError, with the nearest key, for an unknown one; `page`
    lists them."""
    name = _spellings(spec).get(key.replace("-", "_"))
    if name is None:
        fix = did_you_mean(key, _spellings(spec), f"{page} lists them all")
        raise UsageError(f"{where}: the {section} section has no such key", fix=fix)
    return OptionValue(name=name, values=tuple(values), where=where)


def filled(spec: type[Spec], places: Iterable[Iterable[OptionValue]]) -> tuple[Spec, dict[str, str]]:
    """A `spec` of what was given, the strongest place first, and where each option was given, else its flag.

    A list of one place replaces that of a weaker one. Raises UsageError for a value that its option does not take."""
    given: dict[str, OptionValue] = {}
    for each in chain.from_iterable(places):
        given.setdefault(each.name, each)
    options = {each.name: each for each in fields(spec)}  # type: ignore[arg-type]
    values = {name: _value_of(options[name], each) for name, each in given.items()}
    return spec(**values), {name: given[name].where if name in given else flag_of(options[name]) for name in options}


def broken_rules(content: Mapping[str, Any], spec: Any, names: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What the rules of a TOML file have against values of a spec: the field, what is wrong, what to write instead.

    A row of `rules` is of options (`fields`), each of whose values is tried against its rules. `when` is a Python
    expression of `value`, of `key` and `rest` before and behind its first "=", of the options by their fields, of
    `spec`, of `terms`, which are expressions themselves, and of `names`. Texts may name the same in braces."""
    for field, rules in ((field, row["rules"]) for row in content["rules"] for field in row["fields"]):
        given = getattr(spec, field)
        for value in given if isinstance(given, tuple) else () if given is None else (given,):
            key, _, rest = str(value).partition("=")
            terms = content.get("terms", {})
            known = SubjectNames(spec, terms, spec=spec, value=value, key=key, rest=rest, **names)
            for rule in rules:
                if evaluate(rule["when"], known):
                    yield field, rule["message"].format_map(known), rule.get("fix", "").format_map(known)


def _value_of(each: Field[Any], given: OptionValue) -> Any:
    """The typed value of an option's values."""
    kind, values = value_kind(each), given.values
    if "" in values:
        raise UsageError(f"{given.where}: is empty", fix="give it a value, or remove it")
    if kind == "tuple[str, ...]":
        return values
    if len(values) != 1:
        raise UsageError(f"{given.where}: takes one value, not {len(values)}")
    if kind == "bool":
        if values[0].lower() not in YES | NO:
            raise UsageError(f"{given.where}: {values[0]!r} is not true or false")
        return values[0].lower() in YES
    if kind == "int":
        return _number(values[0], each.metadata, given.where)
    choices = each.metadata["choices"]
    if choices and values[0] not in choices:
        raise UsageError(f"{given.where}: {values[0]!r} is not one of {', '.join(choices)}")
    return values[0]


def _number(word: str, meta: Mapping[str, Any], where: str) -> int:
    # int() also takes 1_000, digits of other scripts, and blanks around them.
    if not _WHOLE.fullmatch(word):
        raise UsageError(f"{where}: {word!r} is not a whole number", fix="in digits, such as 4")
    number = int(word)
    if meta["least"] is not None and number < meta["least"]:
        raise UsageError(f"{where}: {number} is less than {meta['least']}")
    most = meta["most"] or MAX_NUMBER
    if number > most:
        raise UsageError(f"{where}: {word} is more than {most}")
    return number
