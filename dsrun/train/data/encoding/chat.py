"""Conversations as a model reads them: by the chat template of its tokenizer, and what the assistant wrote of them."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsrun.errors import UsageError
from dsrun.recipe.preflight.files import CHAT_TEMPLATES
from dsrun.recipe.preflight.layouts import no_template
from dsrun.recipe.rows.normal import UNLEARNED

ChatMessages = list[dict[str, Any]]

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True)
class ChatSample:
    """Token ids of a conversation up to some answer; `learned` says of each whether the loss covers it, and `answer` is
    the index of the last message that it covers."""

    ids: list[int]
    learned: list[bool]
    answer: int | None


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

    The parts to learn are those that the template marks with `{% generation %}`, else what rendering one message more
    adds to the text; `options` are what the template gets beside them. Raises UsageError for messages that it refuses.
    """
    answers = [i for i, each in enumerate(messages) if each["role"] == "assistant" and not each.get(UNLEARNED)]
    control = {
        **tokenizer.get_added_vocab(),
        **dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True)),
    }
    unmarked = [{name: value for name, value in each.items() if name != UNLEARNED} for each in messages]
    chat = _Chat(tokenizer, unmarked, tools, where, control, options or {})
    if tokenizer.is_fast and _GENERATION.search(tokenizer.get_chat_template(tools=tools)):
        return [chat.by_template_marks(answers)]
    full = chat.render(len(messages))
    spans: dict[int, tuple[int, int]] = {}
    apart: list[ChatSample] = []
    for answer in answers:
        start, alone = chat.answer_in_its_place(answer)
        end = _end_in(full, alone, start, chat)
        if end is None:
            apart.append(chat.sample(alone, {answer: (start, len(alone))}))
        else:
            spans[answer] = (start, end)
    return [*apart, *([chat.sample(full, spans)] if spans or not apart else [])]


def _same(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    return next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _end_in(full: str, alone: str, start: int, chat: "_Chat") -> int | None:
    """Where in the whole conversation an answer ends that ends `alone`, the conversation up to it; None where the two
    differ before that."""
    if full.startswith(alone):
        return len(alone)
    # Some templates end a conversation, but not each turn of it, with the end token (Phi-3).
    body = alone.rstrip().removesuffix(chat.end or "")
    return len(body) if full.startswith(body) and chat.ends_turn(alone[start : len(body)]) else None


@dataclass(frozen=True)
class _Chat:
    tokenizer: Any
    messages: ChatMessages
    tools: list[Any] | None
    where: str
    control: dict[str, int]
    options: dict[str, Any]

    @property
    def end(self) -> str | None:
        return self.tokenizer.eos_token

    def render(self, count: int, **how: Any) -> Any:
        """The first `count` messages as text."""
        return self._apply(self.messages[:count], tokenize=False, **how)

    def _apply(self, messages: ChatMessages, **how: Any) -> Any:
        from jinja2 import TemplateError

        try:
            return self.tokenizer.apply_chat_template(messages, tools=self.tools, **self.options, **how)
        except (TemplateError, TypeError) as error:
            # TypeError: templates index and join what they take for text.
            raise UsageError(f"{self.where}: the chat template refuses these messages: {error}") from error

    def ends_turn(self, text: str) -> bool:
        """Whether a text ends with a control token."""
        return text.rstrip().endswith(tuple(self.control))

    def answer_in_its_place(self, index: int) -> tuple[int, str]:
        """The conversation up to message `index`, and where in it begins what the assistant writes."""
        alone = self.render(index + 1)
        if index == 0:
            # Many templates cannot render an empty conversation.
            return max(0, alone.find(str(self.messages[0]["content"]).strip())), alone
        prompt = self.render(index, add_generation_prompt=True)
        if not alone.startswith(prompt):
            # A generation prompt of its own kind, as one that opens a reasoning which this answer does not have.
            prompt = alone[: max(_same(alone, prompt), _same(alone, self.render(index)))]
        # Templates move or drop the reasoning before the answer.
        content = str(self.messages[index]["content"]).rpartition("</think>")[2].strip()
        if content and content not in alone[len(prompt) :]:
            raise UsageError(
                f"{self.where}: the chat template changes what precedes an answer, so what the assistant wrote cannot "
                "be told apart",
                fix="--chat-template FILE with {% generation %} … {% endgeneration %} around the assistant's part",
            )
        return len(prompt), alone

    def by_template_marks(self, answers: list[int]) -> ChatSample:
        how = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": True}
        found = self._apply(self.messages, **how)
        ids, learned = list(found["input_ids"]), [bool(mark) for mark in found["assistant_masks"]]
        written = [i for i, each in enumerate(self.messages) if each["role"] == "assistant"]
        if written != answers:
            learned = self._without_others(learned, written, answers)
        return ChatSample(ids, learned, answers[-1] if answers else None)

    def _without_others(self, learned: list[bool], written: list[int], answers: list[int]) -> list[bool]:
        """The marks of `answers` alone, told by their order."""
        starts = [k for k, mark in enumerate(learned) if mark and not (k and learned[k - 1])]
        if len(starts) != len(written):
            raise UsageError(
                f"{self.where}: the chat template marks {len(starts)} parts of {len(written)} answers, of which only "
                f"{len(answers)} are to be learned",
                fix="put {% generation %} around the whole of each answer",
            )
        kept = [False] * len(learned)
        for message, start in zip(written, starts, strict=True):
            if message in answers:
                end = next((k for k in range(start, len(learned)) if not learned[k]), len(learned))
                kept[start:end] = [True] * (end - start)
        return kept

    def sample(self, text: str, spans: dict[int, tuple[int, int]]) -> ChatSample:
        """The tokens of a rendered conversation; `spans` are its answers by message, in characters."""
        mark = self._mark_by_offsets if self.tokenizer.is_fast else self._mark_by_prefixes
        ids, parts = mark(text, list(spans.values()))
        learned, control = [False] * len(ids), set(self.control.values())
        for part in filter(None, parts):
            for k in part:
                learned[k] = True
            after = part[-1] + 1
            if any(ids[k] in control for k in part):
                continue
            # The end of an answer must be learned too: the next turn's control token where that ends it (GLM).
            if after < len(ids):
                learned[after] = ids[after] in control
            elif self.tokenizer.eos_token_id is not None:
                ids, learned = [*ids, self.tokenizer.eos_token_id], [*learned, True]
        return ChatSample(ids, learned, max(spans, default=None))

    def _mark_by_offsets(self, full: str, spans: list[tuple[int, int]]) -> tuple[list[int], list[list[int]]]:
        found = self.tokenizer(full, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        ids, offsets = found["input_ids"], found["offset_mapping"]
        control = set(self.control.values())
        parts = []
        for start, end in spans:
            inside = [k for k, (left, right) in enumerate(offsets) if start <= left < end and right > left]
            # ChatML closes a turn with a control token and a line break; generation stops before the line break.
            while len(inside) > 1 and not full[slice(*offsets[inside[-1]])].strip() and ids[inside[-1]] not in control:
                if not any(ids[k] in control for k in inside):
                    break
                inside.pop()
            parts.append(inside)
        return list(ids), parts

    def _mark_by_prefixes(self, full: str, spans: list[tuple[int, int]]) -> tuple[list[int], list[list[int]]]:
        """For tokenizers without offsets: a span begins and ends where the tokens of its prefix end."""
        ids = list(self.tokenizer(full, add_special_tokens=False, verbose=False)["input_ids"])
        parts = []
        for span in spans:
            edges = []
            for edge in span:
                prefix = self.tokenizer(full[:edge], add_special_tokens=False, verbose=False)["input_ids"]
                if ids[: len(prefix)] != prefix:
                    raise UsageError(
                        f"{self.where}: this slow tokenizer joins the assistant's text with the preceding text",
                        fix="use a fast tokenizer: --use-fast-tokenizer true",
                    )
                edges.append(len(prefix))
            parts.append(list(range(*edges)))
        return ids, parts
