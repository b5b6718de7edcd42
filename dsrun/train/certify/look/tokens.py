"""Checks of what training learns of texts: special tokens, and conversations by the model's own chat template."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal

import numpy as np
from transformers import GenerationConfig
from transformers.utils import GENERATION_CONFIG_NAME

from dsrun.datafiles import json_beside
from dsrun.errors import UsageError, one_line
from dsrun.findings.finding import Finding, finding_of, text_of
from dsrun.train.certify.subject import CertifySubject
from dsrun.train.data.encoding.chat import ChatSample, encode_chat
from dsrun.train.data.encoding.tokenizer import load_tokenizer

_NAMES = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "forced_bos_token_id")

ChatFault = Literal["chat_answers", "chat_others", "chat_ends", "chat_stops"]
"""An answer is not learned once; something else is; an answer is learned without an end, or with one at which
generation does not stop."""


def own_tokenizer(subject: CertifySubject) -> Any:
    """The model's own, None where there is none."""
    return load_tokenizer(subject.spec(subject.found.folder)) if subject.tokenizer else None


def generation_of(subject: CertifySubject) -> Any:
    """How the model generates where nothing else is asked."""
    if (subject.found.folder / GENERATION_CONFIG_NAME).is_file():
        return GenerationConfig.from_pretrained(subject.found.folder)
    return GenerationConfig.from_model_config(subject.config)


def ids_in(value: Any) -> list[int]:
    """A token id, or several, or none, of a config."""
    return [] if value is None else np.atleast_1d(value).tolist()


def ids(subject: CertifySubject) -> Iterator[Finding]:
    try:
        tokenizer, generation = own_tokenizer(subject), generation_of(subject)
    except (UsageError, OSError) as error:
        why = getattr(error, "message", one_line(error))
        yield finding_of("ids_unread", error=why, where=str(subject.found.folder))
        return
    text = subject.config.get_text_config()
    places = [("config.json", subject.config), ("config.json", text)]
    if (subject.found.folder / GENERATION_CONFIG_NAME).is_file():  # else it is made of config.json
        places.append((GENERATION_CONFIG_NAME, generation))
    known = [(file, name, each) for file, at in places for name in _NAMES for each in ids_in(getattr(at, name, None))]
    rows, found = text.vocab_size, []
    if tokenizer is not None:
        # Training grows the embedding to as many rows as the tokenizer has tokens.
        rows = max(rows, len(tokenizer))
        known.append(("tokenizer.json", "its last token", max(tokenizer.get_vocab().values())))
    for file, name, value in sorted({each for each in known if not 0 <= each[2] < rows}):
        found.append(finding_of("ids_outside", name=name, value=value, rows=rows, file=file))
    ends, end = ids_in(generation.eos_token_id), getattr(tokenizer, "eos_token_id", None)
    if ends and end is not None and end not in ends:
        found.append(finding_of("ids_end", end=tokenizer.eos_token, ids=sorted({*ends, end})))
    grown = text_of("ids.grown", tokens=rows) if rows > text.vocab_size else text_of("ids.fits")
    yield from found or [finding_of("ids", rows=text.vocab_size, grown=grown)]


def chat(subject: CertifySubject) -> Iterator[Finding]:
    try:
        tokenizer, generation = own_tokenizer(subject), generation_of(subject)
    except (UsageError, OSError):  # `ids` says so
        return
    if not getattr(tokenizer, "chat_template", None):
        return
    told = json_beside(__file__, "conversations.json")
    refused: dict[str, UsageError] = {}
    learned: dict[str, LearnedChat] = {}
    for name, each in told["conversations"].items():
        tools = told["tools"] if any("tool_calls" in message for message in each["messages"]) else None
        try:
            samples = encode_chat(tokenizer, each["messages"], tools, name)
        except UsageError as error:
            refused[name] = error
        else:
            learned[name] = LearnedChat(tokenizer, samples, each["expected"])
    if not learned:
        yield finding_of("chat_refused", error=next(iter(refused.values())).message)
        return
    if not all(each.is_readable for each in learned.values()):
        yield finding_of("chat_unread")
        return
    stops = {*ids_in(generation.eos_token_id), *ids_in(tokenizer.eos_token_id)}
    ends = {token for each in learned.values() for token in each.last}
    written = ", ".join(tokenizer.convert_ids_to_tokens(sorted(ends)))
    faults = {name: each.fault(stops) for name, each in learned.items()}
    for fault in sorted(filter(None, {*faults.values()})):
        names = ", ".join(name for name, each in faults.items() if each == fault)
        yield finding_of(fault, names=names, ends=written, ids=sorted(stops | ends))
    if not any(faults.values()):
        others = text_of("chat.refused", names=", ".join(refused)) if refused else text_of("chat.none")
        yield finding_of("chat", right=len(learned), all=len(faults | refused), ends=written, refused=others)


class LearnedChat:
    """What is learned of a conversation: `parts`, token ids each, and `last`, the control tokens that end them. White
    space may follow these. `expected`, of conversations.json, are texts: those `learned`, those only `read`, and the
    `thoughts`, which templates may leave out."""

    def __init__(self, tokenizer: Any, samples: Sequence[ChatSample], expected: Mapping[str, Any]) -> None:
        self.tokenizer, self.answers = tokenizer, expected["answers"]
        marked = [groupby(zip(each.learned, each.ids, strict=True), itemgetter(0)) for each in samples]
        self.parts = [[token for _, token in part] for parts in marked for is_learned, part in parts if is_learned]
        control = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
        last = [next(filter(lambda token: self._read([token]), reversed(part)), -1) for part in self.parts]
        self.last = [token for token in last if token in control]
        self.is_lost = any("reasoning" in each.unread for each in samples)
        self.learned, self.read, self.thoughts = (
            [self._read(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in expected[kind]]
            for kind in ("learned", "read", "thoughts")
        )

    @property
    def is_readable(self) -> bool:
        """Whether the texts are told apart by what the tokenizer gives back of them."""
        texts = [*self.learned, *self.read, *self.thoughts]
        return sum(one in other for one in texts for other in texts) == len(texts)

    def fault(self, stops: set[int]) -> ChatFault | None:
        """What is wrong, where generation stops at any of `stops`."""
        text = "\n".join(map(self._read, self.parts))
        thoughts = {text.count(each) for each in self.thoughts} - ({0, 1} if self.is_lost else {1})
        if thoughts or any(text.count(each) != 1 for each in self.learned):
            return "chat_answers"
        others = any(each in text for each in self.read) or len(self.last) > self.answers
        if others or any(self._goes_on(part, stops) for part in self.parts):
            return "chat_others"
        if len(self.last) < self.answers:
            return "chat_ends"
        return None if stops.issuperset(self.last) else "chat_stops"

    def _goes_on(self, part: Sequence[int], stops: set[int]) -> bool:
        """Whether more than other ends comes behind an end."""
        first = next((k for k, token in enumerate(part) if token in stops), len(part))
        return any(token not in stops and self._read([token]) for token in part[first:])

    def _read(self, ids: Sequence[int]) -> str:
        """The text without white space, of which tokenizers make this and that."""
        return "".join(self.tokenizer.decode(ids).split())
