"""A value that the user gave, its place, and how text becomes it. Command line and files both yield these."""

import json
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dsrun.errors import UsageError, nearest
from dsrun.recipe.flags import JSON_OR_PATH, RENAMED, TAKES, RecipeFlag, hf_flags, own_flags, shown_value
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.system.files import parse_json

# The words HfArgumentParser takes, and YAML's on/off.
TRUE_WORDS = frozenset({"true", "yes", "t", "y", "1", "on"})
FALSE_WORDS = frozenset({"false", "no", "f", "n", "0", "off"})
MANY_CHOICES = 12
# Floats YAML 1.1 takes for strings, `1e-8` above all.
YAML_FLOAT = re.compile(r"^[-+]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)[eE][-+]?\d+$")
COMMAND_LINE = "command line"


class RejectedValue(ValueError):
    """A value that its flag does not take; the message says why."""


def to_int(text: str) -> int:
    """A whole number; `1_000` and `1e6` are fine, `8.5` is not."""
    try:
        return int(text)
    except ValueError:
        number = _number(text)
    if number is None or not number.is_integer():
        raise RejectedValue(f"{text!r} is not a whole number")
    return int(number)


def to_float(text: str) -> float:
    """A number. NaN is refused: it would end in a model of NaNs."""
    number = _number(text)
    if number is None or math.isnan(number):
        raise RejectedValue(f"{text!r} is not a number")
    return number


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def to_bool(text: str) -> bool:
    """true/yes/t/y/1/on or false/no/f/n/0/off, in any case."""
    word = text.lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise RejectedValue(f"{text!r} is not true or false")


def to_json(text: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = parse_json(text)
    except json.JSONDecodeError as error:
        raise RejectedValue(f"not valid JSON: {error.msg} at column {error.colno} of {text!r}") from None
    if not isinstance(value, dict):
        raise RejectedValue(f"{text!r} is not a JSON object like '{{\"key\": 1}}'")
    return value


def pattern_and_rate(text: str) -> tuple[str, float]:
    """A name pattern and a learning rate above 0, from `PATTERN=RATE`."""
    pattern, _, rate = text.rpartition("=")
    value = _number(rate)
    if not pattern.strip() or value is None or not 0 < value < math.inf:
        raise RejectedValue(f"{text!r} is not PATTERN=RATE with a rate above 0, such as 'lm_head=1e-5'")
    return pattern.strip(), value


def key_and_value(text: str) -> tuple[str, Any]:
    """A key, its parts joined by dots, and its value, from `KEY=VALUE`: JSON, or the words and lists of YAML, else the
    text itself."""
    key, equals, word = (part.strip() for part in text.partition("="))
    if not equals or not all(key.split(".")):
        raise RejectedValue(f"{text!r} is not KEY=VALUE, such as 'rope_parameters.factor=4'")
    with suppress(json.JSONDecodeError):
        return key, parse_json(word)
    import yaml  # few command lines have any

    with suppress(yaml.YAMLError):
        value = yaml.safe_load(word)
        if value is None or isinstance(value, bool | list | dict):
            return key, value
    return key, word


def config_values(spec: TrainSpec) -> list[tuple[str, str, Any]]:
    """The values for a model's config: the flag as it was written, the key, the value. Raises RejectedValue."""
    # In key=value,key=value a comma may also stand inside a value.
    short = re.split(r",(?=[\w.]+=)", spec.config_overrides) if spec.config_overrides else []
    words = [("--config-override", word) for word in spec.config_override]
    words += [("--config-overrides", word) for word in short]
    return [(f"{flag} {word}", *key_and_value(word)) for flag, word in words]


def config_flags(spec: TrainSpec) -> str:
    """The flags that change a model's config, as they were written."""
    flags = [flag for flag, _, _ in config_values(spec)] + (["--rope-scaling"] if spec.rope_scaling else [])
    return " ".join(flags)


def rope_settings(given: dict[str, Any] | str) -> dict[str, Any]:
    """What --rope-scaling sets of `rope_parameters`, from TYPE:FACTOR or an object, in which the type may have its
    older name. Raises RejectedValue."""
    if isinstance(given, dict):
        named = {("rope_type" if key == "type" else key): value for key, value in given.items()}
        if not isinstance(named.get("rope_type"), str):
            raise RejectedValue("the object names no rope_type")
        if not isinstance(named.get("factor", 1), int | float):
            raise RejectedValue(f"factor {named['factor']!r} is not a number")
        return named
    kind, _, factor = given.partition(":")
    number = _number(factor)
    if not kind or number is None or not 1 <= number < math.inf:
        raise RejectedValue(f"{given!r} is not TYPE:FACTOR with a factor from 1, such as yarn:4, and no JSON object")
    return {"rope_type": kind, "factor": number}


SCALARS: dict[str, Callable[[str], Any]] = {
    "int": to_int,
    "float": to_float,
    "bool": to_bool,
    # A switch that also takes words: only these two are booleans.
    "bool|str": lambda text: {"true": True, "false": False}.get(text.lower(), text),
    "str": str,
}


def from_text(flag: RecipeFlag, text: str) -> Any:
    """The value of a flag that got one word."""
    if flag.kind == "json":
        if flag.name in JSON_OR_PATH and not text.lstrip().startswith("{"):
            return text
        return to_json(text)
    if flag.kind in ("list", "list|str"):
        return from_texts(flag, [text])
    value = SCALARS[flag.kind](text)
    if flag.choices is not None:
        check_choice(text, flag.choices)
    return value


def from_texts(flag: RecipeFlag, texts: Sequence[str]) -> Any:
    """The value of a flag that got several words. `list|str` keeps a single word as it is."""
    if flag.kind == "list|str" and len(texts) == 1:
        return texts[0]
    return list(texts)


def from_value(flag: RecipeFlag, value: Any) -> Any:
    """The value of a flag read from JSON; strings are read as the command line reads them."""
    if value is None:
        if flag.optional:
            return None
        raise RejectedValue("null is not a valid value")
    if isinstance(value, dict):
        if flag.kind == "json":
            return value
        if "=" in (flag.metavar or ""):  # a list of KEY=VALUE
            return [f"{key}={_word(each)}" for key, each in value.items()]
        raise RejectedValue(f"a mapping is not a valid value; it takes {describe(flag)}")
    if isinstance(value, list):
        if flag.kind not in ("list", "list|str"):
            raise RejectedValue(f"a list is not a valid value; it takes {describe(flag)}")
        return from_texts(flag, [_word(each) for each in value])
    return from_text(flag, _word(value))


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float, str)):
        return str(value)
    return json.dumps(value)


def check_choice(text: str, choices: tuple[str, ...]) -> None:
    """Raise RejectedValue unless the word is one of the choices."""
    if text in choices:
        return
    if len(choices) <= MANY_CHOICES:
        raise RejectedValue(f"{text!r} is not one of {', '.join(choices)}")
    # adamw: adamw_torch, and its kin in the order of Transformers.
    hint = nearest(text, choices) or next((each for each in choices if each.startswith(f"{text}_")), None)
    raise RejectedValue(f"{text!r} is not known" + (f"; did you mean {hint}?" if hint else f": {', '.join(choices)}"))


def describe(flag: RecipeFlag) -> str:
    """What the flag takes, in words."""
    return TAKES[flag.kind]


@dataclass(frozen=True, kw_only=True)
class ParsedValue:
    """A typed value of the flag called `name`.

    `spelling` is the name as it was written, underscores throughout; `source` is what `--explain` shows
    ("command line", "run.yaml:12"); `where` begins an error about it ("--zero", "run.yaml:12: zero.stage")."""

    name: str
    value: Any
    spelling: str
    source: str
    where: str

    def __str__(self) -> str:
        return f"{self.where} {shown_value(self.name, self.value)}"


def from_words(flag: RecipeFlag, texts: Sequence[str], *, spelling: str, source: str, where: str) -> ParsedValue:
    """A value from the words that follow a flag (or the scalars of a YAML list)."""
    flag, texts = _rerouted(flag, texts)
    several = flag.kind in ("list", "list|str")

    def read() -> Any:
        return from_texts(flag, texts) if several else from_text(flag, texts[0])

    return _given(flag, read, spelling=spelling, source=source, where=where)


def from_data(flag: RecipeFlag, value: Any, *, spelling: str, source: str, where: str) -> ParsedValue:
    """A value from parsed JSON."""
    if isinstance(value, str):
        flag, (value,) = _rerouted(flag, [value])
    return _given(flag, lambda: from_value(flag, value), spelling=spelling, source=source, where=where)


def _given(flag: RecipeFlag, read: Callable[[], Any], *, spelling: str, source: str, where: str) -> ParsedValue:
    try:
        value = read()
    except RejectedValue as error:
        raise UsageError(f"{where}: {error}") from None
    if flag.name == "resume":
        value = {"true": "auto", "false": "never"}.get(value.lower(), value)
    return ParsedValue(name=flag.name, value=value, spelling=spelling, source=source, where=where)


def _rerouted(flag: RecipeFlag, texts: Sequence[str]) -> tuple[RecipeFlag, Sequence[str]]:
    """The flag that is meant by a flag with these words, and the words for it.

    `--debug underflow_overflow` is TrainingArguments.debug; `--debug` and `--debug false` are ours.
    `--micro-batch-size auto` is a switch of its own, so that a micro batch is a number everywhere else."""
    if flag.name in RENAMED and not {word.lower() for word in texts} <= TRUE_WORDS | FALSE_WORDS:
        return hf_flags()[RENAMED[flag.name]], texts
    if flag.name == "micro_batch_size" and [word.lower() for word in texts] == ["auto"]:
        return own_flags()["auto_micro_batch"], ["true"]
    return flag, texts
