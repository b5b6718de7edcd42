"""Rows in the normal form of their layout; see `dsrun.recipe.preflight.layouts`."""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any

from dsrun.errors import UsageError, nearest
from dsrun.recipe.preflight.bad_rows import UNREADABLE
from dsrun.recipe.preflight.layouts import SYSTEM, RowLayout
from dsrun.system.files import parse_json

UNLEARNED = "unlearned"
"""The key that marks a message of the assistant that is read but not learned; templates do not see it."""
# Prepared rows hold int32.
_LEAST_ID, _LARGEST_ID = -(2**31), 2**31 - 1

_ROLES = {
    "human": "user",
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "model"), "assistant"),
    **dict.fromkeys(("function", "observation", "function_response", "tool_response"), "tool"),
    **{role: role for role in ("developer", "system", "user", "assistant", "tool")},
}
"""Roles as data sets write them (ShareGPT and others), in whatever case, and as chat templates know them."""


_CONVERSATION = 'write it as [{"role": "user", "content": "…"}, …]'


def normal_or_bad(layout: RowLayout, where: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row in normal form, or what is wrong with it, under `bad`, and which of REASONS that is."""
    if UNREADABLE in row:
        return {"reason": "unreadable", "bad": row[UNREADABLE]}
    if lack := layout.lack(row):
        return {"reason": "columns", "bad": f"{where}: {lack}"}
    try:
        return normalise(layout, row, where)
    except UsageError as error:
        return {"reason": "invalid", "bad": str(error)}


def normalise(layout: RowLayout, row: Mapping[str, Any], where: str) -> dict[str, Any]:
    if layout.kind == "pair":
        source, target = _pair(layout, row, where)
        return {"source": source, "target": target}
    if layout.kind == "text":
        text = _text(row.get(layout.columns[0]), layout.columns[0], where)
        return {"text": text, "starts": bool(row.get("starts", True)), "ends": bool(row.get("ends", True))}
    if layout.kind == "chat":
        return _chat(layout, row, where)
    if layout.kind == "preference":
        return _preference(layout, row, where)
    if layout.kind == "chat-preference":
        return _chat_preference(layout, row, where)
    return _tokens(layout, row, where)


def _preference(layout: RowLayout, row: Mapping[str, Any], where: str) -> dict[str, Any]:
    texts = [_text(row.get(column) or None, column, where) for column in (layout.target or "", layout.rejected or "")]
    chosen, rejected = texts
    if layout.columns or chosen is None or rejected is None:
        parts = [_text(row.get(column), column, where) for column in layout.columns]
        source = "\n".join(part for part in parts if part)
        return {"source": source, "chosen": chosen, "rejected": rejected}
    prompt = _common_beginning(chosen, rejected)
    return {"source": prompt, "chosen": chosen[len(prompt) :], "rejected": rejected[len(prompt) :]}


def _common_beginning(one: str, other: str) -> str:
    """What two texts begin with, up to the last white space: a word that only begins alike belongs to the answers."""
    same = "".join(a for a, _ in takewhile(lambda two: two[0] == two[1], zip(one, other, strict=False)))
    return same[: max(same.rfind(space) + 1 for space in (" ", "\n"))]


def _chat_preference(layout: RowLayout, row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Both conversations, only the answers to be learned. Answers may come as texts, as messages, or after a repetition
    of the prompt."""
    names = [name for name in layout.columns if name not in (SYSTEM, "tools")]
    asked = [message for name in names for message in _said("user", row.get(name), name, where)]
    answers = [_said("assistant", row.get(name), name, where) for name in (layout.target or "", layout.rejected or "")]
    if not all(answers):
        return {"chosen": None, "rejected": None, "tools": None}
    if not asked or all(answer[0]["role"] != "assistant" for answer in answers):
        asked, answers = _divided(*answers)
    system = _text(row.get(SYSTEM), SYSTEM, where)
    if system and asked and asked[0]["role"] != "system":
        asked = [{"role": "system", "content": system}, *asked]
    tools = _tools(row, where)
    chosen, rejected = ([*map(_unlearned, asked), *answer] for answer in answers)
    named = {"chosen": (chosen, layout.target), "rejected": (rejected, layout.rejected), "tools": (tools, "tools")}
    return _as_json(named, where)


def _as_json(columns: Mapping[str, tuple[Any, str | None]], where: str) -> dict[str, str | None]:
    """Values with the names of their columns as JSON in a text; None for those that are empty."""
    return {
        name: _text(json.dumps(value, ensure_ascii=False), column or "", where) if value else None
        for name, (value, column) in columns.items()
    }


def _said(role: str, value: Any, column: str, where: str) -> list[dict[str, Any]]:
    """Messages, or a text as the message of this role; [] for nothing."""
    if isinstance(value, str):
        text = _text(value, column, where)
        return [{"role": role, "content": text}] if text else []
    return messages_of([value] if isinstance(value, Mapping) else value, where)


def _divided(
    chosen: list[dict[str, Any]], rejected: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
    """The turns that two conversations begin with, and the rest of each."""
    same = sum(1 for _ in takewhile(lambda two: two[0] == two[1], zip(chosen, rejected, strict=False)))
    return chosen[:same], [chosen[same:], rejected[same:]]


def _pair(layout: RowLayout, row: Mapping[str, Any], where: str) -> tuple[str | None, str | None]:
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


def _chat(layout: RowLayout, row: Mapping[str, Any], where: str) -> dict[str, Any]:
    if layout.target:
        messages = _as_conversation(layout, row, where)
    elif layout.columns[0] == "prompt":
        # What precedes the completion is read, whoever said it.
        prompt = [_unlearned(each) for each in messages_of(row.get("prompt"), where)]
        messages = [*prompt, *messages_of(row.get("completion"), where)]
    else:
        messages = messages_of(row.get(layout.columns[0]), where)
    return _as_json({"messages": (messages, layout.columns[0]), "tools": (_tools(row, where), "tools")}, where)


def _as_conversation(layout: RowLayout, row: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
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


def _tokens(layout: RowLayout, row: Mapping[str, Any], where: str) -> dict[str, Any]:
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
        with suppress(json.JSONDecodeError):
            value = parse_json(value)
    if value is None:
        return []
    if isinstance(value, str) or not isinstance(value, Sequence):
        kind = "text" if isinstance(value, str) else type(value).__name__
        raise UsageError(f"{where}: a conversation must be a list of messages, not a {kind}", fix=_CONVERSATION)
    return [_message(item, where) for item in value]


def _message(item: Any, where: str) -> dict[str, Any]:
    if not isinstance(item, Mapping):
        raise UsageError(f"{where}: a message must be a dictionary with role and content", fix=_CONVERSATION)
    # Arrow fills in the keys that other messages have; templates ask whether a key is there at all.
    message = without_none(item)
    role = message.pop("from", None) if "role" not in message else message.pop("role")
    content = message.pop("value", None) if "content" not in message else message.pop("content")
    known = _ROLES.get(str(role).lower())
    if role is None:
        raise _without("role", item, where)
    if known is None:
        fix = "rename it: roles are system, user, assistant and tool"
        raise UsageError(f"{where}: unknown role {role!r} in a message", fix=fix)
    if content is None and not message.get("tool_calls"):
        raise _without("content", item, where)
    found = {"role": known, "content": _plain(content, where)}
    # The keys of OpenAI's format and of axolotl for what is read but not learned.
    learned = [message.pop(name) for name in ("weight", "train", "training") if name in message]
    if any(each not in (0, 1) for each in learned):
        raise UsageError(f"{where}: the weight of a message is {learned[0]!r}; it must be 0 or 1")
    return _unlearned({**found, **message}) if not all(learned) else {**found, **message}


def _without(key: str, item: Mapping[str, Any], where: str) -> UsageError:
    """The error for a message that lacks this key."""
    there = [name for name in item if item[name] is not None]
    texts = [name for name in there if name not in ("role", "from") and isinstance(item[name], str)]
    meant = nearest(key, there) or (texts[0] if key == "content" and len(texts) == 1 else None)
    return UsageError(
        f"{where}: a message has no {key}; its keys: {', '.join(there)}",
        fix=f"rename {meant!r} to {key!r}" if meant else "each message has a role and a content",
    )


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
