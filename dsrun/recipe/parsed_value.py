"""Given: one value that the user gave, and where. Both the command line and files yield these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dsrun.errors import UsageError
from dsrun.recipe.convert import (
    FALSE_WORDS,
    TRUE_WORDS,
    Rejected,
    from_text,
    from_texts,
    from_value,
)
from dsrun.recipe.flags import RENAMED, SECRETS, Flag, hf_flags, own_flags

COMMAND_LINE = "command line"
HIDDEN = "***"


@dataclass(frozen=True, kw_only=True)
class ParsedValue:
    """A typed value of the flag called `name`.

    `spelling` is the name as it was written, underscores throughout; `source` is what `--explain` shows
    ("command line", "run.yaml:12"); `where` begins an error about it ("--zero", "run.yaml:12: zero.stage").
    """

    name: str
    value: Any
    spelling: str
    source: str
    where: str

    def __str__(self) -> str:
        return f"{self.where} {shown_value(self.name, self.value)}"


def shown_value(name: str, value: Any) -> str:
    """A value as a message or `--explain` shows it: secrets hidden, booleans and lists as they are typed."""
    if name in SECRETS and value is not None:
        return HIDDEN
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value)


def from_words(flag: Flag, words: Sequence[str], *, spelling: str, source: str, where: str) -> ParsedValue:
    """A value from the words that follow a flag (or the scalars of a YAML list)."""
    flag, words = _rerouted(flag, words)
    several = flag.kind in ("list", "list|str")

    def read() -> Any:
        return from_texts(flag, words) if several else from_text(flag, words[0])

    return _given(flag, read, spelling=spelling, source=source, where=where)


def from_data(flag: Flag, value: Any, *, spelling: str, source: str, where: str) -> ParsedValue:
    """A value from parsed JSON."""
    if isinstance(value, str):
        flag, (value,) = _rerouted(flag, [value])
    return _given(flag, lambda: from_value(flag, value), spelling=spelling, source=source, where=where)


def _given(flag: Flag, read: Callable[[], Any], *, spelling: str, source: str, where: str) -> ParsedValue:
    try:
        value = read()
    except Rejected as error:
        raise UsageError(f"{where}: {error}") from None
    if flag.name == "resume":
        value = _resume_word(value)
    return ParsedValue(name=flag.name, value=value, spelling=spelling, source=source, where=where)


def _rerouted(flag: Flag, words: Sequence[str]) -> tuple[Flag, Sequence[str]]:
    """The flag that is meant by a flag with these words, and the words for it.

    `--debug underflow_overflow` is TrainingArguments.debug; `--debug` and `--debug false` are ours.
    `--micro-batch-size auto` is a switch of its own, so that a micro batch is a number everywhere else.
    """
    if flag.name in RENAMED and not {word.lower() for word in words} <= TRUE_WORDS | FALSE_WORDS:
        return hf_flags()[RENAMED[flag.name]], words
    if flag.name == "micro_batch_size" and [word.lower() for word in words] == ["auto"]:
        return own_flags()["auto_micro_batch"], ["true"]
    return flag, words


def _resume_word(value: str) -> str:
    """Trainer.train also takes a boolean: true is its newest checkpoint, false none."""
    return {"true": "auto", "false": "never"}.get(value.lower(), value)
