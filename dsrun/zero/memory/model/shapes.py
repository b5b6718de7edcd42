"""The settings of a config.json, checked as they are read, and the parameter tensors of a family from these alone, as
shapes.toml describes them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from dsrun.datafiles import evaluate, toml_beside
from dsrun.errors import UsageError
from dsrun.models.families import family_of
from dsrun.zero.memory.model.architecture import LayerWeight

_MATRICES = {"linear": "linear", "embedding": "embedding", "norm": "vector"}
"""The kind of a tensor `NAME.weight`, by the word that a line begins with."""
_CHOICES = re.compile(r"(.*)\{(.*)\}(.*)")
_LEAST = {"first_k_dense_replace": 0, "num_experts": 0}
"""Settings that may be smaller than 1."""


@cache
def _table() -> dict[str, dict[str, Any]]:
    return toml_beside(__file__)


@cache
def families() -> frozenset[str]:
    """The model types that are described."""
    return frozenset(name for name in _table() if not name.startswith("_"))


@cache
def _description(family: str) -> dict[str, Any]:
    """What is written of a family, with what it takes of the one that it is like."""
    own = _table()[family]
    base = _description(own["like"]) if "like" in own else {}
    return {**base, **own, **{table: {**base.get(table, {}), **own.get(table, {})} for table in ("sizes", "each")}}


def tensors_of(config: Mapping[str, Any], family: str) -> tuple[LayerWeight, ...]:
    """Every parameter tensor, in the order of transformers' model.

    Raises UsageError for settings that make no model, or that are missing."""
    return tuple(_TensorBuilder(config, family).tensors("weights"))


Plain = TypeVar("Plain", bound=bool | str)
MOST_LAYERS = 10_000
"""Ten times the deepest transformer; layers are counted one by one."""
LARGEST_SIDE = 10**8
"""No width or vocabulary comes near it; a larger number is a typo."""


@dataclass(frozen=True, eq=False)
class ModelSettings:
    """A config's settings by name, with the names' defaults in transformers given by the caller."""

    config: Mapping[str, Any]

    def number(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """The first of `names` that the config sets, as a whole number of at least `least`.

        Raises UsageError when it is none, or missing without a default."""
        name = next((each for each in names if self.config.get(each) is not None), None)
        if name is None:
            if default is None:
                raise UsageError(f"config.json has no {names[0]}")
            return default
        value, most = self.config[name], MOST_LAYERS if "layer" in name else LARGEST_SIDE
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise UsageError(f"config.json: {name} {value!r} is not a number from {least} to {most:,}")
        return value

    def optional(self, *names: str) -> int | None:
        """Like `number`, but None where the config sets none of them."""
        return self.number(*names) if any(self.config.get(name) is not None for name in names) else None

    def numbers(self, name: str) -> tuple[int, ...]:
        """A setting that is a list of whole numbers; none where it is not set."""
        value = self.config.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(type(each) is int for each in value):
            raise UsageError(f"config.json: {name} {value!r} is not a list of whole numbers")
        return tuple(value)

    def plain(self, name: str, default: Plain) -> Plain:
        """A switch or a word, as its default is one."""
        value = self.config.get(name)
        return default if value is None else type(default)(value)

    def share(self, *names: str, default: float) -> float:
        """A probability: the first of `names` that the config sets."""
        for name in names:
            value = self.config.get(name)
            if value is None:
                continue
            if not isinstance(value, int | float) or not 0 <= value <= 1:
                raise UsageError(f"config.json: {name} {value!r} is not a probability")
            return float(value)
        return default


class _TensorBuilder:
    def __init__(self, config: Mapping[str, Any], family: str) -> None:
        self.description = _description(family)
        model_type = self.description.get("model_type", family)
        self.config = {**config, "model_type": model_type}
        if self.description.get("flat"):
            self.config |= self._inner("text_config") | {"model_type": model_type}
        self.names: dict[str, Any] = {"config": config, "facts": family_of(model_type), "len": len}
        for name, rule in self.description["sizes"].items():
            self.names[name] = self._value(rule) if isinstance(rule, str) else self._setting(*rule)

    def _value(self, expression: str) -> Any:
        return evaluate(expression, self.names)

    def _setting(self, *rule: Any) -> Any:
        """What the config sets under the first of some names, else their default."""
        settings = ModelSettings(self.config)
        names = [each for each in rule if isinstance(each, str) and not each.startswith("=")]
        default = rule[-1] if len(names) < len(rule) else None
        if isinstance(default, str):
            default = self._value(default.removeprefix("=").strip())
        holder, _, name = names[0].rpartition(".")
        if holder:
            settings, names = ModelSettings(self._inner(holder)), [name]
        if isinstance(default, bool | str):
            return settings.plain(name, default)
        if isinstance(default, list):
            return settings.numbers(name)
        return settings.number(*names, default=default, least=_LEAST.get(name, 1))

    def _inner(self, name: str) -> dict[str, Any]:
        found = self.config.get(name)
        if not isinstance(found, dict | None):
            raise UsageError(f"config.json: {name} is not an object")
        return found or {}

    def tensors(self, part: str) -> Iterator[LayerWeight]:
        for line in self.description[part]:
            said, _, condition = line.partition(" if ")
            if not condition or self._value(condition):
                word, *given = said.split()
                yield from self._line(word, given)

    def _line(self, word: str, given: list[str]) -> Iterator[LayerWeight]:
        if word == "part":
            yield from _under(given[0], self.tensors(given[1]))
        elif word == "layers":
            for number in range(self._value(given[1])):
                self.names["layer"] = number
                self.names |= {name: self._value(rule) for name, rule in self.description["each"].items()}
                yield from _under(f"{given[0]}.{number}", self.tensors(given[2]))
        elif word == "model":
            yield from _under(given[0], tensors_of(self._inner(given[1]), given[2]))
        elif word == "head":
            tied = ModelSettings(self.config).plain("tie_word_embeddings", self.names["facts"].ties_embeddings)
            yield from () if tied else (LayerWeight("lm_head.weight", self._sizes(given), "head"),)
        elif word == "tensor":
            yield LayerWeight(given[1], self._sizes(given[2:]), given[0])  # type: ignore[arg-type]
        else:
            yield from self._matrices(word, *given)

    def _matrices(self, word: str, name: str, *given: str) -> Iterator[LayerWeight]:
        """A module's weight, and its bias where the size after those of the weight is true."""
        count = 1 if word == "norm" else 2
        shape = self._sizes(given[:count])
        biased = any(map(self._value, given[count:]))
        found = _CHOICES.fullmatch(name)
        for each in [f"{found[1]}{choice}{found[3]}" for choice in found[2].split(",")] if found else [name]:
            yield LayerWeight(f"{each}.weight", shape, _MATRICES[word])  # type: ignore[arg-type]
            if biased:
                yield LayerWeight(f"{each}.bias", shape[:1], "vector")

    def _sizes(self, given: Iterable[str]) -> tuple[int, ...]:
        return tuple(map(self._value, given))


def _under(name: str, weights: Iterable[LayerWeight]) -> Iterator[LayerWeight]:
    """The tensors of a module called `name`; "-" is none."""
    return (each if name == "-" else each._replace(name=f"{name}.{each.name}") for each in weights)
