"""ds_schema.json: what DeepSpeed reads, block by block; and what its pydantic models make of a JSON value.

They convert: "8" is a number to them, 1 a boolean. The rules are those of pydantic's lax mode for Python input
(https://docs.pydantic.dev/latest/concepts/conversion_table/), held against the real models by
tests/integration/test_lint_verdicts.py."""

import json
import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

from dsrun.datafiles import json_beside, toml_beside
from dsrun.findings.finding import text_of
from dsrun.messages import Message, joined

SchemaEntry = dict[str, Any]
Path = tuple[str | int, ...]
"""A key of the JSON and the blocks that it is in."""


class SchemaBlock(NamedTuple):
    """An object of the JSON.

    style "model": unknown keys are refused and "auto" is left out; "read": keys are looked up one by one and
    everything else is ignored. `null`: the block may be null."""

    path: str
    style: str
    null: bool
    keys: dict[str, SchemaEntry]

    @property
    def spellings(self) -> dict[str, str]:
        """Every name a key answers to (pydantic takes the field's name beside its alias) -> the key."""
        return {name: key for key, entry in self.keys.items() for name in (key, entry.get("name", key))}


@cache
def _content() -> dict[str, Any]:
    return dict(json_beside(__file__, "ds_schema.json"))


@cache
def blocks() -> dict[str, SchemaBlock]:
    """Every block by its path; the top level is the empty one."""
    return {path: SchemaBlock(path, **entry) for path, entry in _content()["blocks"].items()}


def removed(block: str) -> tuple[str, ...]:
    """The keys of a block whose feature is gone: DeepSpeed refuses them."""
    return tuple(_content()["removed"].get(block, ()))


@cache
def legacy() -> dict[str, Any]:
    """What became of the keys and optimizers of older releases."""
    return toml_beside(__file__, "legacy.toml")


def optimizer_params() -> dict[str, list[str] | None]:
    """DeepSpeed's own optimizers, in lower case, with the keys of `params` (None: unknown)."""
    return dict(_content()["optimizers"]["deepspeed"])


def torch_optimizers() -> dict[str, dict[str, bool]]:
    """torch.optim's optimizers: keyword -> whether it must be given."""
    return dict(_content()["optimizers"]["torch"])


def schedulers() -> dict[str, dict[str, bool]]:
    """The schedulers of DeepSpeed and torch: keyword -> whether it must be given."""
    both = _content()["schedulers"]
    return {**both["torch"], **both["deepspeed"]}


def own_schedulers() -> tuple[str, ...]:
    return tuple(_content()["schedulers"]["deepspeed"])


@cache
def homes() -> dict[str, tuple[str, ...]]:
    """Key -> the paths of the blocks that have it."""
    found: dict[str, tuple[str, ...]] = {}
    for path, block in blocks().items():
        for key in block.keys:
            found[key] = (*found.get(key, ()), path)
    return found


ValueFit = Literal["exact", "converted", "refused"]

TRUE_WORDS = frozenset({"1", "on", "t", "true", "y", "yes"})
FALSE_WORDS = frozenset({"0", "off", "f", "false", "n", "no"})
INT_TEXT = re.compile(r"\s*[-+]?\d+(_\d+)*(\.0+)?\s*", re.ASCII)
BOUNDS: tuple[tuple[str, str, Callable[[Any, Any], bool]], ...] = (
    ("gt", "expected.above", operator.gt),
    ("ge", "expected.at_least", operator.ge),
    ("lt", "expected.below", operator.lt),
    ("le", "expected.at_most", operator.le),
)


class FittedValue(NamedTuple):
    """How a value fits a key, and what DeepSpeed takes it for."""

    coerce: ValueFit
    value: Any = None


REFUSED = FittedValue("refused")


def json_type(value: Any) -> str:
    """null, bool, int, float, str, list or dict."""
    if value is None:
        return "null"
    for kind in (bool, int, float, str, list):
        if isinstance(value, kind):
            return kind.__name__
    return "dict"


def coerce(value: Any, entry: Mapping[str, Any]) -> FittedValue:
    """Fit a value to a key of a model: `types`, `null`, `choices` and `items` of the schema. Bounds come after."""
    if value is None and entry.get("null"):
        return FittedValue("exact", None)
    best = REFUSED
    for word in entry["types"]:
        found = _as_word(word, value, entry)
        if found.coerce == "exact":
            return found
        if best.coerce == "refused":
            best = found
    return best


def outside(value: Any, entry: Mapping[str, Any]) -> str:
    """The bounds in words when the fitted value breaks one of them, else an empty text."""
    limits = [(key, entry[name], holds) for name, key, holds in BOUNDS if name in entry]
    if value is None or all(holds(value, limit) for _, limit, holds in limits):
        return ""
    return joined(" and ", (text_of(key, limit=limit) for key, limit, _ in limits))


def expected(entry: Mapping[str, Any]) -> Message:
    """What a key takes, in words."""
    if "choices" in entry:
        return text_of("expected.choices", values=", ".join(shown(each) for each in entry["choices"]))
    types = entry["types"] if "types" in entry else [entry["type"]]
    nouns = joined(" or ", (text_of(f"expected.{word}") for word in types))
    if "items" in entry:
        texts = entry["items"]["types"] == ["str"]
        nouns = text_of("expected.texts") if texts else text_of("expected.list_of", values=expected(entry["items"]))
    return text_of("expected.null", values=nouns) if entry.get("null") and "any" not in types else nouns


def shown(value: Any) -> str:
    """A value as it stands in the JSON, cut when it is long."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except ValueError:  # Python writes at most 4300 digits
        return "a number with too many digits"
    return text if len(text) <= 60 else text[:57] + "…"


def _as_word(word: str, value: Any, entry: Mapping[str, Any]) -> FittedValue:
    if word in ("literal", "enum"):
        return _as_choice(word, value, entry["choices"])
    if word == "list" and isinstance(value, list):
        return _as_items(value, entry.get("items"))
    return CONVERTERS[word](value)


def _as_choice(word: str, value: Any, choices: list[Any]) -> FittedValue:
    for choice in choices:
        if type(choice) is type(value) and choice == value:
            return FittedValue("exact", choice)
        if isinstance(choice, int) and isinstance(value, int) and not isinstance(value, bool) and choice == value:
            return FittedValue("exact", choice)
    if word == "enum" and isinstance(choices[0], int):
        number = _as_int(value)
        if number.coerce != "refused" and number.value in choices:
            return FittedValue("converted", int(number.value))
    return REFUSED


def _as_items(value: list[Any], items: Mapping[str, Any] | None) -> FittedValue:
    fits = [coerce(each, items) for each in value] if items else [FittedValue("exact", each) for each in value]
    kinds = {each.coerce for each in fits}
    if "refused" in kinds:
        return REFUSED
    return FittedValue("converted" if "converted" in kinds else "exact", [each.value for each in fits])


def _as_bool(value: Any) -> FittedValue:
    if isinstance(value, bool):
        return FittedValue("exact", value)
    if isinstance(value, int | float) and value in (0, 1):
        return FittedValue("converted", value == 1)
    if isinstance(value, str) and value.lower() in TRUE_WORDS | FALSE_WORDS:
        return FittedValue("converted", value.lower() in TRUE_WORDS)
    return REFUSED


def _as_int(value: Any) -> FittedValue:
    if isinstance(value, bool):
        return FittedValue("converted", int(value))
    if isinstance(value, int):
        return FittedValue("exact", value)
    if isinstance(value, float):  # 5e8 is a float to JSON readers, and how people write bucket sizes
        fits = value.is_integer() and abs(value) < 2**63
        return FittedValue("exact", int(value)) if fits else REFUSED
    if isinstance(value, str) and INT_TEXT.fullmatch(value):
        return FittedValue("converted", int(value.strip().partition(".")[0]))
    return REFUSED


def _as_float(value: Any) -> FittedValue:
    if isinstance(value, bool):
        return FittedValue("converted", float(value))
    if isinstance(value, int | float):
        return FittedValue("exact", float(value) if abs(value) < 10**300 else math.inf)
    return python_float(value) if isinstance(value, str) and value.isascii() else REFUSED


def python_float(text: str) -> FittedValue:
    """A number from text as Python itself reads it: digits of every script, which pydantic does not take."""
    try:
        return FittedValue("converted", float(text))
    except ValueError:
        return REFUSED


def _of(kind: type) -> Callable[[Any], FittedValue]:
    return lambda value: FittedValue("exact", value) if isinstance(value, kind) else REFUSED


CONVERTERS: dict[str, Callable[[Any], FittedValue]] = {
    "bool": _as_bool,
    "int": _as_int,
    "float": _as_float,
    "str": _of(str),
    "path": _of(str),
    "list": _of(list),
    "dict": _of(dict),
    "any": lambda value: FittedValue("exact", value),
    "never": lambda value: REFUSED,
}
