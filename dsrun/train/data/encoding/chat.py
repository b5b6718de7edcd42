"""Conversations as a model reads them: by the chat template of its tokenizer, and what the assistant wrote of them."""

import inspect
import json
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsrun.errors import UsageError
from dsrun.recipe.preflight.files import CHAT_TEMPLATES
from dsrun.recipe.preflight.layouts import no_template
from dsrun.recipe.rows.normal import UNLEARNED
from dsrun.system.files import parse_json
from dsrun.train.base.refusals import refusal
from dsrun.train.data.encoding.written import ChatMessages, ChatRenderer, Spans, reasoning_apart


@dataclass(frozen=True)
class ChatSample:
    """Token ids of a conversation up to some answer; `learned` says of each whether the loss covers it, and `answer` is
    the index of the last message that it covers. `unread` are the things in the conversation that the template does not
    write: tools, reasoning."""

    ids: list[int]
    learned: list[bool]
    answer: int | None
    unread: frozenset[str] = frozenset()


def set_template(tokenizer: Any, requested: str | None) -> None:
    """Give the tokenizer the template that --chat-template names: one of dsrun's own, or a file."""
    if requested is not None:
        is_own = requested in CHAT_TEMPLATES
        path = Path(__file__).with_name(f"{requested}.jinja") if is_own else Path(requested).expanduser()
        tokenizer.chat_template = path.read_text(encoding="utf-8")


def check_template(tokenizer: Any, where: str) -> None:
    """Raise UsageError where there is no template to render conversations by."""
    if not getattr(tokenizer, "chat_template", None):
        raise no_template(where)


def encode_chat(
    tokenizer: Any, messages: ChatMessages, tools: list[Any] | None, where: str, options: dict[str, Any] | None = None
) -> list[ChatSample]:
    """A conversation as one sample, or as several where the template changes earlier turns when later ones come: then
    each answer is learned after the history that the model sees when it writes that answer.

    `options` are what the template gets beside messages and tools. Raises UsageError for messages that it refuses,
    CallNotWritten where it leaves out a call of a tool."""
    # What transformers itself gives the template, or does with its text.
    own = inspect.signature(tokenizer.apply_chat_template).parameters.keys() - {"documents"}
    if taken := sorted(own & (options or {}).keys()):
        raise refusal("chat.option", where=where, name=taken[0])
    answers = {i for i, each in enumerate(messages) if each["role"] == "assistant" and not each.get(UNLEARNED)}
    unmarked = [{name: value for name, value in each.items() if name != UNLEARNED} for each in messages]
    chat = ChatRenderer(tokenizer, list(map(with_arguments, unmarked)), tools, where, options or {})
    try:
        return _encode(chat, answers)
    except UsageError:
        # Few templates take the arguments of a call as JSON in a text (DeepSeek-V3).
        if any(each.get("tool_calls") for each in messages):
            with suppress(UsageError):
                texts = [with_arguments(each, as_text=True) for each in unmarked]
                return _encode(replace(chat, messages=texts), answers)
        raise


def _encode(chat: ChatRenderer, answers: set[int]) -> list[ChatSample]:
    if chat.signs.has_reasoning:
        chat = replace(chat, messages=[reasoning_apart(each) for each in chat.messages])
    full, _ = chat.written(chat.messages)
    # By text: its answers, each in its parts. An answer stands in the longest text that has it as it is written.
    found: dict[str, dict[int, Spans]] = {full: {}}
    unread = {"tools"} if chat.ignores_tools(full) else set()
    for index in reversed(range(len(chat.messages))):
        # Of calls that are not learned, too, the history must tell.
        if index not in answers and not chat.messages[index].get("tool_calls"):
            continue
        answer = chat.answer(index)
        if index in answers:
            unread |= {"reasoning"} if answer.lost_reasoning else set()
            places = ((text, answer.within(text, chat.signs, chat.tokenizer.eos_token)) for text in found)
            text, spans = next((each for each in places if each[1] is not None), (answer.text, answer.spans))
            found.setdefault(text, {})[index] = spans or []
    if len(found) > 1 and not found[full]:
        del found[full]
    return [_sample(chat, text, found[text], frozenset(unread)) for text in reversed(found)]


def with_arguments(message: dict[str, Any], *, as_text: bool = False) -> dict[str, Any]:
    """A message whose calls have their arguments as an object, or as JSON in a text, as OpenAI's format has them; what
    is not JSON stays as it is. Without calls there is no key for them: templates ask whether it is there."""

    def told(call: Any) -> Any:
        if isinstance(call, dict) and "function" in call:
            return {**call, "function": told(call["function"])}
        arguments = call.get("arguments") if isinstance(call, dict) else None
        if as_text and isinstance(arguments, dict):
            return {**call, "arguments": json.dumps(arguments, ensure_ascii=False)}
        with suppress(ValueError):
            if not as_text and isinstance(arguments, str) and isinstance(found := parse_json(arguments), dict):
                return {**call, "arguments": found}
        return call

    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    calls = message.get("tool_calls")
    return {**rest, "tool_calls": list(map(told, calls)) if isinstance(calls, list) else calls} if calls else rest


def _sample(chat: ChatRenderer, text: str, answers: dict[int, Spans], unread: frozenset[str]) -> ChatSample:
    """The tokens of a rendered conversation; `answers` are what is learned of it."""
    ends, control = chat.signs.ends, set(chat.signs.control.values())
    ids, place = _tokens(chat, text)
    learned = [False] * len(ids)
    for spans in answers.values():
        part = [k for left, right in spans for k in range(place(left), place(right))]
        last = next((k for k in reversed(part) if chat.tokenizer.decode(ids[k]).strip()), -1)
        is_closed = ends and last >= 0 and ids[last] in control
        for k in part:
            # ChatML closes a turn with a control token and a line break; generation stops before the line break.
            learned[k] = not is_closed or k <= last
        # The end of an answer must be learned too: the next turn's control token where that ends it (GLM).
        if is_closed or not spans:
            continue
        if (after := place(spans[-1][1])) < len(ids):
            learned[after] |= ids[after] in control
        elif chat.tokenizer.eos_token_id is not None:
            ids, learned = [*ids, chat.tokenizer.eos_token_id], [*learned, True]
    return ChatSample(ids, learned, max(answers, default=None), unread)


def _tokens(chat: ChatRenderer, text: str) -> tuple[list[int], Callable[[int], int]]:
    """The tokens of a text, and which is the first that begins at a character or behind it."""

    def encoded(text: str, **how: Any) -> Any:
        return chat.tokenizer(text, add_special_tokens=False, verbose=False, **how)

    if chat.tokenizer.is_fast:
        found = encoded(text, return_offsets_mapping=True)
        starts = [left for left, _ in found["offset_mapping"]]
        return list(found["input_ids"]), lambda character: bisect_left(starts, character)
    ids = list(encoded(text)["input_ids"])

    def after(character: int) -> int:
        """Without offsets a part begins and ends where the tokens of what is before it end."""
        prefix = encoded(text[:character])["input_ids"]
        if ids[: len(prefix)] != prefix:
            raise refusal("chat.joined", where=chat.where)
        return len(prefix)

    return ids, after
