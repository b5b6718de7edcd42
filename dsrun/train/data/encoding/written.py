"""What the assistant writes of a conversation: each answer after the text that the model sees when it writes it."""

import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from dsrun.errors import UsageError
from dsrun.recipe.rows.normal import alike
from dsrun.train.base.refusals import refusal

ChatMessages = list[dict[str, Any]]
Spans = list[tuple[int, int]]

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_REASONING = ("reasoning_content", "reasoning", "thinking")
_ASKED: dict[str, Any] = {"role": "user", "content": "x"}
_ANSWER, _THOUGHT = "dsrun-answer", "dsrun-thought"


class CallNotWritten(UsageError):
    """The chat template leaves out a tool call, or writes it as no model could read it."""


@dataclass(frozen=True)
class TurnSigns:
    """What a template writes around an answer: the tokenizer's control tokens, those that end a plain answer (none
    where the next turn's first token does, as with GLM), and the header before it; whether a reasoning that is a field
    of a message is written, or begun by the header; and the header that ends every text, whoever comes next."""

    control: dict[str, int]
    ends: tuple[str, ...]
    header: str
    has_reasoning: bool
    always: str = ""


@dataclass(frozen=True)
class WrittenAnswer:
    """An answer after its prompt: the text of both, the parts of it to learn, in characters, and whether a reasoning
    that the message has is missing in it."""

    text: str
    spans: Spans
    lost_reasoning: bool

    def within(self, text: str, signs: TurnSigns, end: str | None) -> Spans | None:
        """The parts in a longer text; None where that has another beginning, or another end of this answer."""
        if text.startswith(self.text):
            goes_on = not signs.ends and signs.header and text.startswith(signs.header, len(self.text))
            return None if goes_on else self.spans
        # Some templates end a conversation, but not each turn of it, with the end token (Phi-3).
        body = self.text.rstrip().removesuffix(end or "")
        if not (signs.ends and text.startswith(body) and body.rstrip().endswith(signs.ends)):
            return None
        return [(left, min(right, len(body))) for left, right in self.spans if left < len(body)]


@dataclass(frozen=True)
class ChatRenderer:
    """A conversation and the template that renders it, with what else that gets."""

    tokenizer: Any
    messages: ChatMessages
    tools: list[Any] | None
    where: str
    options: dict[str, Any]

    def render(self, messages: ChatMessages, **how: Any) -> str:
        return self._render(messages, **how)[0]

    def written(self, messages: ChatMessages) -> tuple[str, Spans]:
        """Messages as text, without the header of one that is not there (Command R7B), and what the template marks."""
        text, marks = self._render(messages)
        return text.removesuffix(self.signs.always), marks

    def _render(self, messages: ChatMessages, **how: Any) -> tuple[str, Spans]:
        """Messages as text, and what the template marks of it with `{% generation %}`."""
        named = {**self.tokenizer.special_tokens_map, "tools": self.tools, **self.options, **how}
        template = self.tokenizer.get_chat_template(tools=self.tools)
        marked = bool(_GENERATION.search(template))
        try:
            texts, marks = render_jinja_template(
                [messages], chat_template=template, return_assistant_tokens_mask=marked, **named
            )
        except (TemplateError, TypeError) as error:
            # TypeError: templates index and join what they take for text.
            raise UsageError(f"{self.where}: the chat template refuses these messages: {error}") from error
        return texts[0], marks[0] if marks else []

    @property
    def signs(self) -> TurnSigns:
        return _signs_of(self.tokenizer, self.tokenizer.get_chat_template(tools=self.tools))

    def ignores_tools(self, full: str) -> bool:
        """Whether the template writes the same where there are no tools."""
        with suppress(UsageError):
            return bool(self.tools) and replace(self, tools=None).written(self.messages)[0] == full
        return False

    def answer(self, index: int) -> WrittenAnswer:
        """Message `index` as the model writes it. Where the template marks the assistant's parts, those are it."""
        message, given = self.messages[index], self._prompt(self.messages[:index])
        whole, marks = self.written(self.messages[: index + 1])
        try:
            prompt, start = self._place(index, whole, given)
        except UsageError:
            if not marks:
                raise
            prompt, start = whole[: marks[-1][0]], marks[-1][0]
        written = whole[start:]
        _check_calls(message, written, self.where)
        reasoning = _reasoning_of(message)
        if reasoning and not marks and _opens(given) and "</think>" not in written:
            # The template leaves out what the prompt has opened (DeepSeek-R1).
            prompt, written = given, f"{reasoning}\n</think>\n\n{written}"
        text, shift = prompt + written, len(prompt) - start
        within = [(max(left + shift, len(prompt)), right + shift) for left, right in marks]
        spans = [each for each in within if each[0] < each[1]] if marks else [(len(prompt), len(text))]
        return WrittenAnswer(text, spans, reasoning not in written)

    def _prompt(self, before: ChatMessages) -> str:
        """What the model sees when it writes after these messages; "" where the template refuses them alone."""
        try:
            return self.render(before, add_generation_prompt=True) if before else ""
        except UsageError:
            return ""

    def _place(self, index: int, whole: str, given: str) -> tuple[str, int]:
        """What stands before message `index` when the model writes it, and where in `whole`, the conversation up to
        that message, what it writes begins."""
        message = self.messages[index]
        start = self._start(self.messages[:index], whole, given)
        prompt = whole[:start]
        if start is None:
            before, header, written = whole.partition(self.signs.header or "\0")
            if not index and header:
                return before + header, len(whole) - len(written)
            # The template changes earlier turns once there is this answer; alone, it is written alike.
            asked, (alone, _) = self._prompt([_ASKED]), self.written([_ASKED, message])
            begin = self._start([_ASKED], alone, asked) or len(alone)
            if begin < len(alone) and whole.endswith(alone[begin:]):
                start = len(whole) - len(alone[begin:])
                prompt = given.removesuffix(asked[begin:]) or whole[:start]
        if start is None or str(message.get("content") or "").strip() not in whole[start:]:
            raise refusal("chat.changed", where=self.where, number=index + 1)
        return prompt, start

    def _start(self, before: ChatMessages, whole: str, prompt: str) -> int | None:
        """Where in `whole` begins what follows this prompt; None where other text stands in its place."""
        if not prompt:
            return None
        if whole.startswith(prompt):
            # After a tool's result a header may be missing in the prompt alone.
            header = "" if prompt.endswith(self.signs.header) else self.signs.header
            return len(prompt) + len(header) * whole.startswith(header, len(prompt))
        fork, begin = alike(prompt, whole), alike(prompt, self.render(before))
        if fork < begin:
            return None
        # A generation prompt of its own kind, as one that opens a reasoning which this answer does not have. The two
        # may begin alike: <think> and <b>.
        tag = whole.rfind("<", begin, fork)
        return fork if tag < 0 or ">" in whole[tag:fork] else tag


def _opens(prompt: str) -> bool:
    """Whether a generation prompt begins a reasoning."""
    return prompt.rstrip().endswith("<think>")


def _check_calls(message: Mapping[str, Any], written: str, where: str) -> None:
    """Raise CallNotWritten unless the name of each call and those of its arguments are in the text."""
    there = [call.get("function", call) for call in message.get("tool_calls") or () if isinstance(call, dict)]
    calls = [call for call in there if isinstance(call, dict)]
    given = [call["arguments"] for call in calls if isinstance(call.get("arguments"), Mapping) and call["arguments"]]
    words = Counter([str(call.get("name")) for call in calls] + [str(name) for each in given for name in each])
    # Jinja writes an object as Python does, which is not JSON.
    if any(str(each) in written for each in given) or any(written.count(word) < n for word, n in words.items()):
        what = f"{where}: the chat template leaves out a call of {calls[-1].get('name')}"
        raise CallNotWritten(what, fix="--chat-template FILE with one that writes such calls")


def reasoning_apart(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose reasoning, if its content begins with one in <think>, is a field instead."""
    reasoning, _, content = str(message.get("content") or "").rpartition("</think>")
    if not reasoning or message["role"] != "assistant" or _reasoning_of(message):
        return message
    reasoning = reasoning.lstrip().removeprefix("<think>").strip("\n")
    return {**message, "content": content.lstrip("\n"), _REASONING[0]: reasoning}


def _reasoning_of(message: Mapping[str, Any]) -> str:
    return str(next(filter(None, map(message.get, _REASONING)), "")).strip()


@lru_cache(maxsize=8)
def _signs_of(tokenizer: Any, template: str) -> TurnSigns:
    """Told by a plain question and answer."""
    special = zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True)
    known = {**tokenizer.get_added_vocab(), **dict(special)}
    # Gemma's added tokens have runs of line breaks and spaces among them.
    control = {token: number for token, number in known.items() if token.strip(" ▁\t\r\n")}
    said = {"role": "assistant", "content": _ANSWER, _REASONING[0]: _THOUGHT}
    chat = ChatRenderer(tokenizer, [_ASKED, said], None, "", {})
    try:
        before, _, after = chat.render(chat.messages).rpartition(_ANSWER)
        asked, prompt = (chat.render([_ASKED], add_generation_prompt=flag) for flag in (False, True))
    except UsageError:
        # The template wants more than this; nearly all of them end their turns.
        return TurnSigns(control, tuple(control), "", False)
    # Behind the end token of an answer nothing but a header has control tokens.
    _, end, tail = after.rpartition(tokenizer.eos_token or "\0")
    always = tail if end and asked.endswith(tail) and any(token in tail for token in control) else ""
    ends = tuple(token for token in control if token in after.removesuffix(always))
    header = prompt[alike(asked, prompt) :]
    return TurnSigns(control, ends, header, _THOUGHT in before or _opens(prompt), always)
