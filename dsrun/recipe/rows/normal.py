"""Rows in the normal form of their layout; see `dsrun.recipe.preflight.layouts`."""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

from dsrun.datafiles import toml_beside
from dsrun.errors import DsrunError, UsageError, nearest
from dsrun.recipe.preflight.bad_rows import UNREADABLE
from dsrun.recipe.preflight.layouts import RowLayout
from dsrun.recipe.rows.beside import beside, history_of, refuse, structure_of, tools_of, without_none
from dsrun.refusals import Refusals
from dsrun.system.files import parse_json

UNLEARNED = "unlearned"
"""The key that marks a message of the assistant that is read but not learned; templates do not see it."""
_TEXTS = Refusals(__file__, "refusals.toml")
_MASKS = ("assistant_masks", "completion_mask")
# What is refused whatever the layout.
_MEDIA = dict(beside("", (), ())[1])
# What the loss leaves out, as torch and transformers have it.
_IGNORED = -100
# Prepared rows hold int32.
_LEAST_ID, _LARGEST_ID = -(2**31), 2**31 - 1

_ROLES = {name: role for role, names in toml_beside(__file__)["roles"].items() for name in (role, *names)}
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
    refuse(layout.refused, row, where)
    row = layout.pick(row)
    if layout.kind == "pair":
        source, target = _pair(layout, row, where)
        return {"source": source, "target": target}
    if layout.kind == "text":
        text = _text(row.get(layout.columns[0]), layout.columns[0], where)
        return {"text": text, "starts": bool(row.get("starts", True)), "ends": bool(row.get("ends", True))}
    make = {"chat": _chat, "preference": _preference, "chat-preference": _chat_preference, "tokens": _tokens}
    return make[layout.kind](layout, row, where)


def _preference(layout: RowLayout, row: Mapping[str, Any], where: str) -> dict[str, Any]:
    texts = [_text(row.get(column) or None, column, where) for column in (layout.target or "", layout.rejected or "")]
    chosen, rejected = texts
    if layout.columns or chosen is None or rejected is None:
        parts = [_text(row.get(column), column, where) for column in layout.columns]
        source = "\n".join(part for part in parts if part)
        return {"source": source, "chosen": chosen, "rejected": rejected}
    # What both begin with, up to the last white space: a word that only begins alike belongs to the answers.
    same = chosen[: alike(chosen, rejected)]
    prompt = same[: max(same.rfind(space) + 1 for space in (" ", "\n"))]
    return {"source": prompt, "chosen": chosen[len(prompt) :], "rejected": rejected[len(prompt) :]}


def alike(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many items, or characters, two sequences begin with alike."""
    return next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _chat_preference(layout: RowLayout, row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Both conversations, only the answers to be learned. Answers may come as texts, as messages, or after a repetition
    of the prompt."""
    asked = [message for name in layout.columns for message in _said("user", row.get(name), name, where)]
    answers = [_said("assistant", row.get(name), name, where) for name in (layout.target or "", layout.rejected or "")]
    if not all(answers):
        return {"chosen": None, "rejected": None, "tools": None, "options": None}
    if not asked or all(answer[0]["role"] != "assistant" for answer in answers):
        # The turns that both begin with.
        same = alike(*answers)
        asked, answers = answers[0][:same], [answer[same:] for answer in answers]
    asked = _with_system(row, [*history_of(row, where), *asked], where)
    chosen, rejected = ([*map(_unlearned, asked), *answer] for answer in answers)
    return _as_json({"chosen": (chosen, layout.target), "rejected": (rejected, layout.rejected)}, row, where)


def _as_json(
    talks: Mapping[str, tuple[list[Any], str | None]], row: Mapping[str, Any], where: str
) -> dict[str, str | None]:
    """Conversations with the names of their columns, and what the row gives the chat template beside them, as JSON in a
    text; None for what is empty."""
    options = structure_of(row, "chat_template_kwargs", dict, where)
    columns = {**talks, "tools": (tools_of(row, where), "tools"), "options": (options, "chat_template_kwargs")}
    return {
        name: _text(json.dumps(value, ensure_ascii=False), column or "", where) if value else None
        for name, (value, column) in columns.items()
    }


def _with_system(row: Mapping[str, Any], messages: list[dict[str, Any]], where: str) -> list[dict[str, Any]]:
    """The conversation after the row's system message, where it has none of its own."""
    system = _text(row.get("system"), "system", where)
    if not system or not messages or messages[0]["role"] in ("system", "developer"):
        return messages
    return [{"role": "system", "content": system}, *messages]


def _said(role: str, value: Any, column: str, where: str) -> list[dict[str, Any]]:
    """Messages, or a text as the message of this role; [] for nothing."""
    if isinstance(value, str):
        text = _text(value, column, where)
        return [{"role": role, "content": text}] if text else []
    return messages_of([value] if isinstance(value, Mapping) else value, where)


def _pair(layout: RowLayout, row: Mapping[str, Any], where: str) -> tuple[str | None, str | None]:
    if layout.keys:
        value = row.get(layout.columns[0]) or {}
        if not isinstance(value, Mapping):
            raise UsageError(f"{where}: {layout.columns[0]!r} is not a dictionary of languages")
        source, target = (_text(value.get(key), key, where) for key in layout.keys)
    else:
        parts = [_text(row.get(column), column, where) for column in layout.columns]
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
    if layout.target or layout.keys:
        messages = _as_conversation(layout, row, where)
    elif layout.columns[0] == "prompt":
        # What precedes the completion is read, whoever said it.
        prompt = [_unlearned(each) for each in messages_of(row.get("prompt"), where)]
        messages = [*prompt, *messages_of(row.get("completion"), where)]
    else:
        messages = messages_of(row.get(layout.columns[0]), where)
    return _as_json({"messages": (_with_system(row, messages, where), layout.columns[0])}, row, where)


def _as_conversation(layout: RowLayout, row: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """A pair as what a user says and what the assistant answers; [] where one of them is missing."""
    source, target = _pair(layout, row, where)
    if not source or target is None:
        return []
    said = (("user", source), ("assistant", target))
    return [*history_of(row, where), *({"role": role, "content": text} for role, text in said)]


def _unlearned(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, UNLEARNED: True} if message["role"] == "assistant" else message


def _tokens(layout: RowLayout, row: Mapping[str, Any], where: str) -> dict[str, Any]:
    ids = _ids(row.get("input_ids"), "input_ids", where)
    labels = None if row.get("labels") is None else _ids(row["labels"], "labels", where)
    if ids is None:
        return {"input_ids": None, "labels": labels, "lengths": None}
    beside = {name: row[name] for name in (*_MASKS, "attention_mask", "position_ids") if row.get(name) is not None}
    # Those of seq2seq are a sequence of their own, which the mask of the source says nothing about.
    is_paired = labels is not None and layout.target is None
    sizes = {name: len(each) for name, each in {**beside, **({"labels": labels} if is_paired else {})}.items()}
    for name, size in sizes.items():
        if size != len(ids):
            raise UsageError(f"{where}: {len(ids)} input_ids but {size} {name}")
    if masks := [beside[name] for name in _MASKS if name in beside]:
        labels, is_paired = [each if all(bits) else _IGNORED for each, *bits in zip(ids, *masks, strict=True)], True
    # Rows that are padded already: padding is made per batch here.
    keep = [k for k, seen in enumerate(beside.get("attention_mask", [1] * len(ids))) if seen]
    lengths = _lengths(row, len(ids), keep, where)
    labels = [labels[k] for k in keep] if is_paired and labels else labels
    return {"input_ids": [ids[k] for k in keep], "labels": labels, "lengths": lengths}


def _lengths(row: Mapping[str, Any], size: int, keep: Sequence[int], where: str) -> list[int] | None:
    """The lengths of the documents that packing made a row of; None where it does not say."""
    lengths, places = (_ids(row.get(name), name, where) for name in ("seq_lengths", "position_ids"))
    made = [place for length in lengths for place in range(length)] if lengths else places
    if made is None:
        return None
    if len(made) != size or places not in (None, made):
        raise UsageError(f"{where}: seq_lengths does not fit the row's {size} input_ids, or its position_ids")
    made = [made[k] for k in keep]
    if any(place not in (0, before + 1) for before, place in zip((-1, *made), made, strict=False)):
        raise UsageError(f"{where}: position_ids do not count the tokens of each document from 0")
    starts = [k for k, place in enumerate(made) if place == 0]
    return [end - start for start, end in pairwise((*starts, len(made)))]


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
    if media := [name for name in message if name in _MEDIA and message[name]]:
        raise UsageError(f"{where}: a message contains {media[0]}; dsrun trains on text")
    if known is None:
        raise _TEXTS.error("message.role", where=where, role=role)
    # OpenAI's first form of a single call.
    if call := message.pop("function_call", None):
        message.setdefault("tool_calls", [{"type": "function", "function": call}])
    if content is None and not message.get("tool_calls"):
        raise _without("content", item, where)
    found = {"role": known, "content": _plain(content, where)}
    # The keys of OpenAI's format and of axolotl for what is read but not learned.
    learned = [message.pop(name) for name in ("weight", "train", "training") if name in message]
    if any(each not in (0, 1) for each in learned):
        raise UsageError(f"{where}: the weight of a message is {learned[0]!r}; it must be 0 or 1")
    return _unlearned({**found, **message}) if not all(learned) else {**found, **message}


def _without(key: str, item: Mapping[str, Any], where: str) -> DsrunError:
    """The error for a message that lacks this key."""
    there = [name for name in item if item[name] is not None]
    texts = [name for name in there if name not in ("role", "from") and isinstance(item[name], str)]
    meant = nearest(key, there) or (texts[0] if key == "content" and len(texts) == 1 else None)
    text = "message.renamed" if meant else "message.incomplete"
    return _TEXTS.error(text, where=where, key=key, there=", ".join(there), meant=meant)


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
