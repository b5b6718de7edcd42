"""Chat data: conversations as rows bring them, and which tokens of their rendering the assistant wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dsrun.errors import UsageError

_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "function": "tool",
    "observation": "tool",
    "function_response": "tool",
    "tool_response": "tool",
    "developer": "developer",
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
"""Roles as data sets write them (ShareGPT and others), and as chat templates know them."""

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


def messages_of(value: Any, where: str) -> list[dict[str, Any]]:
    """One conversation in the form that chat templates take; [] for none.

    Raises:
        UsageError: a message is not a dictionary, has an unknown role, or holds something other than text.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
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
    return {"role": _ROLES[role], "content": _plain(content, where), **message}


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
            raise UsageError(f"{where}: a message holds a part of type {kind!r}; dsrun trains on text")
        parts.append(text)
    return "".join(parts)


def without_none(value: Any) -> Any:
    """A copy without the dictionary entries that are None, at every depth."""
    if isinstance(value, Mapping):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [without_none(item) for item in value]
    return value


def check_template(tokenizer: Any, where: str) -> None:
    """Refuse a tokenizer that has no chat template."""
    if not getattr(tokenizer, "chat_template", None):
        raise UsageError(
            f"{where} holds conversations, but the tokenizer has no chat template",
            fix="--tokenizer of an instruction-tuned model, or a chat_template.jinja in the model's folder",
        )


def encode_chat(
    tokenizer: Any, messages: list[dict[str, Any]], tools: list[Any] | None, where: str
) -> tuple[list[int], list[bool]]:
    """Token ids of a conversation and, for each, whether the assistant wrote it.

    The template's own `{% generation %}` marks are used where it has them. Otherwise each assistant message is what
    rendering one message more adds to the text.

    Raises:
        UsageError: the template refuses the messages, or renders an earlier message anew when a later one
            comes.
    """
    if tokenizer.is_fast and _GENERATION.search(tokenizer.get_chat_template(tools=tools)):
        found = _render(
            tokenizer,
            messages,
            tools,
            where,
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        return list(found["input_ids"]), [bool(mark) for mark in found["assistant_masks"]]
    full = _render(tokenizer, messages, tools, where, tokenize=False)
    spans = _assistant_spans(tokenizer, messages, tools, full, where)
    if tokenizer.is_fast:
        return _mark_by_offsets(tokenizer, full, spans)
    return _mark_by_prefixes(tokenizer, full, spans, where)


def _render(tokenizer: Any, messages: list[dict[str, Any]], tools: list[Any] | None, where: str, **how: Any) -> Any:
    from jinja2 import TemplateError

    try:
        return tokenizer.apply_chat_template(messages, tools=tools, **how)
    except TemplateError as error:
        raise UsageError(f"{where}: the chat template refuses these messages: {error}") from error


def _assistant_spans(
    tokenizer: Any, messages: list[dict[str, Any]], tools: list[Any] | None, full: str, where: str
) -> list[tuple[int, int]]:
    """[start, end) of what the assistant wrote, in characters of the full rendering, end of turn included."""
    spans = []
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        after = full if i + 1 == len(messages) else _render(tokenizer, messages[: i + 1], tools, where, tokenize=False)
        if i == 0:
            # Many templates cannot render an empty conversation.
            start = max(0, after.find(message["content"].strip()))
        else:
            before = _render(tokenizer, messages[:i], tools, where, tokenize=False, add_generation_prompt=True)
            if not after.startswith(before):
                # A template without a generation prompt of its own kind, or one that opens with the answer.
                before = _render(tokenizer, messages[:i], tools, where, tokenize=False)
            start = len(before)
            if not after.startswith(before):
                _not_a_prefix(where)
        if not full.startswith(after):
            _not_a_prefix(where)
        spans.append((start, len(after)))
    return spans


def _not_a_prefix(where: str) -> None:
    raise UsageError(
        f"{where}: the chat template changes earlier messages when later ones come, so the assistant's "
        "tokens cannot be told apart",
        fix="put {% generation %} … {% endgeneration %} around the assistant's part of the template",
    )


def _mark_by_offsets(tokenizer: Any, full: str, spans: list[tuple[int, int]]) -> tuple[list[int], list[bool]]:
    found = tokenizer(full, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ids, offsets = found["input_ids"], found["offset_mapping"]
    marks = [False] * len(ids)
    control = set(tokenizer.all_special_ids) | set(tokenizer.get_added_vocab().values())
    for start, end in spans:
        inside = [k for k, (left, right) in enumerate(offsets) if start <= left < end and right > left]
        # ChatML closes a turn with a control token and a line break; generation stops before the line break.
        while len(inside) > 1 and not full[slice(*offsets[inside[-1]])].strip() and ids[inside[-1]] not in control:
            if not any(ids[k] in control for k in inside):
                break
            inside.pop()
        for k in inside:
            marks[k] = True
    return ids, marks


def _mark_by_prefixes(
    tokenizer: Any, full: str, spans: list[tuple[int, int]], where: str
) -> tuple[list[int], list[bool]]:
    """For tokenizers without offsets: a span begins and ends where the tokens of its prefix end."""
    ids = tokenizer(full, add_special_tokens=False, verbose=False)["input_ids"]
    marks = [False] * len(ids)
    for start, end in spans:
        edges = []
        for edge in (start, end):
            prefix = tokenizer(full[:edge], add_special_tokens=False, verbose=False)["input_ids"]
            if ids[: len(prefix)] != prefix:
                raise UsageError(
                    f"{where}: this slow tokenizer joins the assistant's text with the preceding text",
                    fix="use a fast tokenizer: --use-fast-tokenizer true",
                )
            edges.append(len(prefix))
        marks[edges[0] : edges[1]] = [True] * (edges[1] - edges[0])
    return ids, marks
