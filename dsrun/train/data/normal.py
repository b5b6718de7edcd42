"""Rows in the normal form of their layout; see `dsrun.train.data.layouts`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from dsrun.errors import UsageError
from dsrun.system.files import parse_json
from dsrun.train.data.chat import UNLEARNED
from dsrun.train.data.layouts import SYSTEM, Layout

# Prepared rows hold int32.
_LEAST_ID, _LARGEST_ID = -(2**31), 2**31 - 1

_ROLES = {
    "human": "user",
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "model"), "assistant"),
    **dict.fromkeys(("function", "observation", "function_response", "tool_response"), "tool"),
    **{role: role for role in ("developer", "system", "user", "assistant", "tool")},
}
"""Roles as data sets write them (ShareGPT and others), and as chat templates know them."""


def normal_or_bad(layout: Layout, where: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row in normal form, or what is wrong with it, under `bad`."""
    try:
        return normalise(layout, row, where)
    except UsageError as error:
        return {"bad": str(error)}


def normalise(layout: Layout, row: Mapping[str, Any], where: str) -> dict[str, Any]:
    if layout.kind == "pair":
        source, target = _pair(layout, row, where)
        return {"source": source, "target": target}
    if layout.kind == "text":
        text = _text(row.get(layout.columns[0]), layout.columns[0], where)
        return {"text": text, "starts": bool(row.get("starts", True)), "ends": bool(row.get("ends", True))}
    if layout.kind == "chat":
        return _chat(layout, row, where)
    return _tokens(layout, row, where)


def _pair(layout: Layout, row: Mapping[str, Any], where: str) -> tuple[str | None, str | None]:
    if layout.keys:
        value = row.get(layout.columns[0]) or {}
        if not isinstance(value, Mapping):
            raise UsageError(f"{where}: {layout.columns[0]!r} is not a dictionary of languages")
        source, target = (_text(value.get(key), key, where) for key in layout.keys)
    else:
        parts = [_text(row.get(column), column, where) for column in layout.columns if column != SYSTEM]
        # Alpaca-like data leaves `input` empty where the instruction says it all.
        source = parts[0] and "\n".join(part for part in parts if part)
        target = _text(row.get(layout.target or ""), layout.target or "", where)
    return source, target or None


def _text(value: Any, column: str, where: str) -> str | None:
    """Text unchanged, numbers and truth values as text; None for None and for NaN, pandas' missing value."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            # JSON can write half of a surrogate pair, which neither Arrow nor a tokenizer can take.
            half = f"\\u{ord(value[error.start]):04x}"
            raise UsageError(f"{where}: column {column!r} contains {half}, half of a character") from error
        return value
    if isinstance(value, Mapping | list | tuple | bytes):
        raise UsageError(f"{where}: column {column!r} contains a {type(value).__name__}, not text")
    return str(value)


def _chat(layout: Layout, row: Mapping[str, Any], where: str) -> dict[str, Any]:
    if layout.target:
        messages = _as_conversation(layout, row, where)
    elif layout.columns[0] == "prompt":
        # What precedes the completion is read, whoever said it.
        prompt = [_unlearned(each) for each in messages_of(row.get("prompt"), where)]
        messages = [*prompt, *messages_of(row.get("completion"), where)]
    else:
        messages = messages_of(row.get(layout.columns[0]), where)
    columns = {"messages": (messages, layout.columns[0]), "tools": (_tools(row, where), "tools")}
    return {
        name: _text(json.dumps(value, ensure_ascii=False), column, where) if value else None
        for name, (value, column) in columns.items()
    }


def _as_conversation(layout: Layout, row: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """A pair as what a user says and what the assistant answers; [] where one of them is missing."""
    source, target = _pair(layout, row, where)
    if not source or target is None:
        return []
    system = _text(row.get(SYSTEM), SYSTEM, where)
    said = [("system", system)] if system else []
    return [{"role": role, "content": text} for role, text in (*said, ("user", source), ("assistant", target))]


def _unlearned(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, UNLEARNED: True} if message["role"] == "assistant" else message


def _tools(row: Mapping[str, Any], where: str) -> list[Any]:
    """The tools of a conversation, as a list or as JSON in a text; [] for none."""
    value = row.get("tools")
    if isinstance(value, str):
        try:
            value = parse_json(value) if value.strip() else None
        except json.JSONDecodeError as error:
            raise UsageError(f"{where}: column 'tools' is not JSON ({error.msg})") from error
    if value is None:
        return []
    if not isinstance(value, list):
        raise UsageError(f"{where}: column 'tools' contains a {type(value).__name__}, not a list")
    return list(without_none(value))


def _tokens(layout: Layout, row: Mapping[str, Any], where: str) -> dict[str, Any]:
    ids = _ids(row.get("input_ids"), "input_ids", where)
    labels = None if row.get("labels") is None else _ids(row["labels"], "labels", where)
    mask = row.get("attention_mask")
    if ids is not None and mask is not None:
        # Rows that are padded already: padding is made per batch here.
        paired = labels is not None and layout.target is None
        if len(mask) != len(ids) or (paired and len(labels or ()) != len(ids)):
            raise UsageError(f"{where}: input_ids, labels and attention_mask differ in length")
        keep = [i for i, seen in enumerate(mask) if seen]
        ids = [ids[i] for i in keep]
        # Those of seq2seq are a sequence of their own, which the mask of the source says nothing about.
        labels = [labels[i] for i in keep] if labels is not None and paired else labels
    return {"input_ids": ids, "labels": labels}


def _ids(value: Any, column: str, where: str) -> list[int] | None:
    if value is None or len(value) == 0:
        return None
    if isinstance(value, str) or not all(isinstance(item, int) for item in value):
        raise UsageError(f"{where}: {column!r} is not a list of whole numbers")
    if not _LEAST_ID <= min(value) <= max(value) <= _LARGEST_ID:
        raise UsageError(f"{where}: {column!r} contains a number that is not a token id: {max(value, key=abs)}")
    return list(value)


def messages_of(value: Any, where: str) -> list[dict[str, Any]]:
    """One conversation in the form that chat templates take; [] for none."""
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except json.JSONDecodeError as error:
            raise UsageError(f"{where}: a conversation must be a list of messages, not a text") from error
    if value is None:
        return []
    if not isinstance(value, Sequence):
        raise UsageError(f"{where}: a conversation must be a list of messages, not a {type(value).__name__}")
    return [_message(item, where) for item in value]


def _message(item: Any, where: str) -> dict[str, Any]:
    if not isinstance(item, Mapping):
        raise UsageError(f"{where}: a message must be a dictionary with role and content")
    # Arrow fills in the keys that other messages have; templates ask whether a key is there at all.
    message = without_none(item)
    role = message.pop("from", None) if "role" not in message else message.pop("role")
    content = message.pop("value", None) if "content" not in message else message.pop("content")
    if role not in _ROLES:
        raise UsageError(f"{where}: unknown role {role!r} in a message", fix=f"known: {', '.join(_ROLES)}")
    if content is None and not message.get("tool_calls"):
        raise UsageError(f"{where}: a message of the {_ROLES[role]} has no content")
    found = {"role": _ROLES[role], "content": _plain(content, where)}
    # The keys of OpenAI's format and of axolotl for what is read but not learned.
    learned = [message.pop(name) for name in ("weight", "train", "training") if name in message]
    if any(each not in (0, 1) for each in learned):
        raise UsageError(f"{where}: the weight of a message is {learned[0]!r}; it must be 0 or 1")
    return _unlearned({**found, **message}) if not all(learned) else {**found, **message}


def _plain(content: Any, where: str) -> str:
    """Text of a message; a list of text parts is joined, anything that is not text is refused."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise UsageError(f"{where}: the content of a message is a {type(content).__name__}, not text")
    parts = []
    for part in content:
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(text, str):
            kind = part.get("type", "part") if isinstance(part, Mapping) else type(part).__name__
            raise UsageError(f"{where}: a message contains a part of type {kind!r}; dsrun trains on text")
        parts.append(text)
    return "".join(parts)


def without_none(value: Any) -> Any:
    """A copy without the dictionary entries that are None, at every depth."""
    if isinstance(value, Mapping):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [without_none(item) for item in value]
    return value
