"""--set KEY=VALUE: any key of DeepSpeed's JSON, checked against the keys that the installed release reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dsrun.errors import UsageError
from dsrun.zero.coercion import coerce, expected, outside
from dsrun.zero.schema import Entry, blocks, homes, nearest, removed
from dsrun.zero.view import AUTO

# Their keys are the arguments of the class that is named beside them.
FREE = ("optimizer.params", "scheduler.params")


def overrides(words: tuple[str, ...]) -> dict[str, Any]:
    """Typed values by key, of `KEY=VALUE` words; a later one replaces an earlier one.

    Raises UsageError for a key that DeepSpeed does not read, with the nearest that it does, and for a value that the
    key does not take.
    """
    found: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise UsageError(
                f"--set {word} is not KEY=VALUE", fix="--set zero_optimization.sub_group_size=1e8"
            )
        name, entry = _known(key)
        found[name] = _typed(key, text, entry)
    return found


def switches(given: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, bool]:
    """`enabled` of the blocks that only --set names a key of: nobody sets one of a block that is off."""
    found = {}
    for key in given:
        block = key.rpartition(".")[0]
        known = blocks()[block].keys if block in blocks() else {}
        if "enabled" in known and f"{block}.enabled" not in {**given, **config}:
            found[f"{block}.enabled"] = True
    return found


def _known(key: str) -> tuple[str, Entry | None]:
    """A key by its own name, and what is known of it: None for an argument of an optimizer or scheduler."""
    block, _, name = key.rpartition(".")
    if block in FREE:
        return key, None
    if name in removed(block):
        raise UsageError(f"--set {key}: DeepSpeed has removed it", fix="remove it")
    if block in blocks() and name in blocks()[block].spellings:
        own = blocks()[block].spellings[name]
        return f"{block}.{own}" if block else own, blocks()[block].keys[own]
    near = nearest_key(name)
    hint = f"did you mean {near}?" if near else "docs/config.md lists the keys"
    raise UsageError(f"--set {key}: DeepSpeed has no such key", fix=hint)


def nearest_key(name: str) -> str | None:
    """The key of this name in any block, else of the nearest name; also without the prefixes of ZeRO's keys."""
    known = homes()
    same = (each for each in (name, f"stage3_{name}", f"zero_{name}") if each in known)
    match = next(same, None) or nearest(name, known)
    if match is None:
        return None
    block = known[match][0]
    return f"{block}.{match}" if block else match


def _typed(key: str, text: str, entry: Entry | None) -> Any:
    """The value of a word: JSON where it is, else the text itself; for a list also words with commas."""
    value = _parsed(text)
    if entry is None or (value == AUTO and isinstance(value, str)):
        return value
    if "block" in entry:
        if isinstance(value, dict):
            return value
        raise UsageError(f"--set {key}={text}: an object {{…}} is expected", fix=f"--set {key}.KEY=VALUE")
    typed = entry if "types" in entry else {**entry, "types": [entry["type"]]}
    candidates = [value, text, text.split(",")] if isinstance(value, str) else [value, text]
    fitted = [coerce(each, typed) for each in candidates]
    found = next((each for each in fitted if each.coerce == "exact"), None) or fitted[0]
    if found.coerce == "refused" or ("choices" in entry and found.value not in entry["choices"]):
        raise UsageError(f"--set {key}={text}: {expected(entry)} is expected")
    if limits := outside(found.value, entry):
        raise UsageError(f"--set {key}={text}: a value {limits} is expected")
    return found.value


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
