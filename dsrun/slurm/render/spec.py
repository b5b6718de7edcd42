"""SlurmSpec: everything that can be asked of a SLURM job."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass
from functools import cache
from typing import Any

from dsrun.errors import UsageError
from dsrun.slurm.render.options import SlurmSpec, kind_of, options
from dsrun.slurm.render.rules import check
from dsrun.slurm.units import MOST

YES = frozenset({"true", "yes", "on", "1"})
NO = frozenset({"false", "no", "off", "0"})
_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")


@dataclass(frozen=True, kw_only=True)
class Given:
    """One option as somebody wrote it: its field, the words, and where they stand ("run.yaml:4: slurm.nodes")."""

    name: str
    words: tuple[str, ...]
    where: str


@cache
def spellings() -> dict[str, str]:
    """The field behind every key that run.yaml's `slurm:` section takes, underscores throughout."""
    found: dict[str, str] = {}
    for name, each in options().items():
        for spelling in (name, *each.metadata["aliases"]):
            found[spelling] = name
    return found


def read(key: str, words: Iterable[str], where: str) -> Given:
    """What stands in run.yaml under `key`. Raises UsageError, with the nearest key, for one nobody knows."""
    name = spellings().get(key.replace("-", "_"))
    if name is None:
        near = difflib.get_close_matches(key.replace("-", "_"), spellings(), n=1)
        fix = f"did you mean {near[0]}?" if near else "docs/slurm.md lists them all"
        raise UsageError(f"{where}: the slurm section has no such key", fix=fix)
    return Given(name=name, words=tuple(words), where=where)


def make_spec(*places: Iterable[Given]) -> SlurmSpec:
    """The spec of what was given, the strongest place first; lists of one place replace those of a weaker one.

    Raises UsageError for a value that its option does not take, and for options that contradict each other.
    """
    values: dict[str, Any] = {}
    where: dict[str, str] = {}
    for place in places:
        for each in place:
            if each.name not in values:
                values[each.name] = value_of(options()[each.name], each)
                where[each.name] = each.where
    spec = SlurmSpec(**values)
    check(spec, where)
    return spec


def value_of(each: Field[Any], given: Given) -> Any:
    """The typed value of an option's words."""
    kind, words = kind_of(each), given.words
    if "" in words:
        raise UsageError(f"{given.where}: is empty", fix="give it a value, or leave it away")
    if kind == "list":
        return words
    if len(words) != 1:
        raise UsageError(f"{given.where}: takes one value, not {len(words)}")
    if kind == "bool":
        return _truth(words[0], given.where)
    if kind == "int":
        return _number(words[0], each.metadata, given.where)
    choices = each.metadata["choices"]
    if choices and words[0] not in choices:
        raise UsageError(f"{given.where}: {words[0]!r} is not one of {', '.join(choices)}")
    return words[0]


def _truth(word: str, where: str) -> bool:
    if word.lower() in YES | NO:
        return word.lower() in YES
    raise UsageError(f"{where}: {word!r} is not true or false")


def _number(word: str, meta: Mapping[str, Any], where: str) -> int:
    # int() also takes 1_000, digits of other scripts, and blanks around them.
    if not _WHOLE.fullmatch(word):
        raise UsageError(f"{where}: {word!r} is not a whole number")
    number = int(word)
    if meta["least"] is not None and number < meta["least"]:
        raise UsageError(f"{where}: {number} is less than {meta['least']}")
    if number > MOST:
        raise UsageError(f"{where}: {word} is more than SLURM can count")
    return number
