"""A mixture of data sets: what a set is, and how much of each an epoch has.

`TrainSpec.mix` is {"sets": {NAME: {OPTION: VALUE}}}, the options being those that recipe_spec.toml marks `per_set`, and
`weight`; beside `sets` it may have a `temperature`. What is not given for a set is as for the whole run."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

from dsrun.errors import DsrunError, UsageError
from dsrun.recipe.flags import RecipeFlag, own_flags
from dsrun.recipe.recipe import ranges
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.refusals import Refusals

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""What a set may be called: metrics are called after it."""

_NUMBER: dict[str, Any] = {"owner": "dsrun", "kind": "float", "default": None, "optional": True}
TEMPERATURE = RecipeFlag(name="temperature", key="temperature", **_NUMBER)
WEIGHT = RecipeFlag(name="weight", key="weight", **_NUMBER)


@cache
def set_keys() -> dict[str, RecipeFlag]:
    """The keys of a set, by every spelling."""
    flags = [flag for flag in own_flags().values() if flag.per_set]
    return {spelling: flag for flag in flags for spelling in flag.spellings} | {WEIGHT.name: WEIGHT}


def specs_of(spec: TrainSpec) -> dict[str, TrainSpec]:
    """The spec of each set by its name, as if it were all the data; of data that is not mixed, the spec under ""."""
    if spec.mix is None:
        return {"": spec}
    return {
        name: replace(spec, mix=None, **{key: value for key, value in options.items() if key != WEIGHT.name})
        for name, options in spec.mix["sets"].items()
    }


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Errors say that they are about the set of this name, where it has one."""
    try:
        yield
    except DsrunError as error:
        if name:
            raise type(error)(f"set {name}: {error.message}", fix=error.fix, cause=error.cause) from error
        raise


def trains(options: Mapping[str, Any]) -> bool:
    """Whether a set has training data, as far as its options tell; others are only evaluated on."""
    return bool(options.get("train_file") or options.get("dataset"))


def check_value(key: str, value: Any, where: str) -> None:
    """Raise UsageError for a number out of its range."""
    limits = ranges().get(key)
    if key in (WEIGHT.name, TEMPERATURE.name) and value is not None and not 0 < value < math.inf:
        raise UsageError(f"{where}: {value:g} is not above 0")
    if limits and value is not None and not limits.holds(value):
        raise UsageError(f"{where}: {value} is not {limits}", fix=limits.fix)


def check_sets(sets: Mapping[str, Mapping[str, Any]], temperature: float | None, lines: Mapping[str, str]) -> None:
    """Raise UsageError for sets that do not make a mixture; `lines` are where they are described, as "mix.yaml:3"."""
    weighed = [name for name, options in sets.items() if WEIGHT.name in options]
    for name, options in sets.items():
        names = {"where": f"{lines[name]}: set {name}", "options": options, "temperature": temperature}
        names |= {"trains": trains(options), "is_weighed": name in weighed, "first": next(iter(weighed), None)}
        Refusals(__file__, "refusals.toml").check("set", **names)


def epoch_counts(mix: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, int]:
    """How many samples of each set an epoch has, from how many there are: together as many as there are of all sets.

    Without weights and temperature each sample comes once. A weight is a share of the epoch's samples; with a
    temperature T shares are as size^(1/T) (Devlin 2018 for multilingual BERT; Xue et al. 2021, mT5). Shares are rounded
    by largest remainder, to one sample at least."""
    temperature = mix.get(TEMPERATURE.name)
    weights = {name: mix["sets"][name].get(WEIGHT.name) for name in sizes}
    if temperature is not None:
        weights = {name: size ** (1 / temperature) for name, size in sizes.items()}
    elif None in weights.values():
        return dict(sizes)
    return dict(zip(sizes, _apportioned(sum(sizes.values()), [*weights.values()]), strict=True))


def _apportioned(total: int, weights: Sequence[float]) -> list[int]:
    """`total` divided by these weights into whole numbers of at least 1."""
    whole = math.fsum(weights)
    quotas = [total * (weight / whole) for weight in weights]
    counts = [max(1, math.floor(quota)) for quota in quotas]
    while (missing := total - sum(counts)) != 0:
        step = 1 if missing > 0 else -1
        able = [k for k, count in enumerate(counts) if count + step >= 1]
        counts[max(able, key=lambda k: step * (quotas[k] - counts[k]))] += step
    return counts
