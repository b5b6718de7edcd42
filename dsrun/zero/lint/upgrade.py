"""upgrade(): an old DeepSpeed config in today's keys.

Everything else stays as it is: the order, the numbers as they are written, what fits on one line, indent and line ends.
A file without old keys comes back byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from dsrun.errors import UsageError
from dsrun.zero.lint.source import BLANK, MARK, NotJsonError, Source, read
from dsrun.zero.lint.upgrade_steps import STEPS, Change, Log


def indent_of(text: str, source: Source) -> str:
    """What the first member that begins a line is indented with; two spaces when none is."""
    lines = text.removeprefix(MARK).split("\n")
    for path, position in source.positions.items():
        before = lines[position.line - 1][: position.column - 1]
        if len(path) == 1 and before and not before.strip(BLANK):
            return before
    return "  "


def write(value: Any, text: str, source: Source) -> str:
    """The value as JSON with a final newline, in the manner of `text`, which `source` was read from."""
    letters = text.removeprefix(MARK)
    written = _Writer(indent_of(text, source), source.inline, ascii=letters.isascii()).written(value, "") + "\n"
    return written.replace("\n", "\r\n") if "\r\n" in text else written


@dataclass(frozen=True)
class _Writer:
    indent: str
    inline: Collection[int]
    ascii: bool

    def written(self, value: Any, pad: str, *, flat: bool = False) -> str:
        if not isinstance(value, dict | list):
            return self.scalar(value)
        opening, closing = ("{", "}") if isinstance(value, dict) else ("[", "]")
        flat = flat or id(value) in self.inline or not value
        inner = pad if flat else pad + self.indent
        if isinstance(value, dict):
            members = [f"{self.scalar(key)}: {self.written(each, inner, flat=flat)}" for key, each in value.items()]
        else:
            members = [self.written(each, inner, flat=flat) for each in value]
        if flat:
            return opening + ", ".join(members) + closing
        return f"{opening}\n" + ",\n".join(inner + each for each in members) + f"\n{pad}{closing}"

    def scalar(self, value: Any) -> str:
        text = getattr(value, "text", None)
        return text if isinstance(text, str) else json.dumps(value, ensure_ascii=self.ascii or _is_lone(value))


def _is_lone(value: Any) -> bool:
    """Whether a text holds half of a surrogate pair, which only an escape can write."""
    return isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value)


@dataclass(frozen=True)
class Upgraded:
    """The new text, and what is different about it."""

    text: str
    changes: tuple[Change, ...]


def upgrade(text: str, *, file: str = "ds.json") -> Upgraded:
    """Rewrite the keys of older DeepSpeed releases.

    `file` is the text's name in errors. Raises UsageError, with the place, for text that is not a JSON object.
    """
    try:
        source = read(text)
    except NotJsonError as error:
        raise UsageError(f"{file}:{error.position}: not JSON: {error.message}", fix=error.fix or None) from None
    config = source.value
    if not isinstance(config, dict):
        raise UsageError(f"{file}: not a JSON object", fix="a DeepSpeed config is one object {…}")
    log = Log()
    _text(source, log)
    for step in STEPS:
        step(config, log)
    if not log.changes:
        return Upgraded(text, ())
    return Upgraded(write(config, text, source), tuple(log.changes))


def _text(source: Source, log: Log) -> None:
    for kind, what in (
        ("comment", "comments left out"),
        ("trailing_comma", "commas after the last member left out"),
        ("python_word", "True, False and None written as true, false and null"),
        ("mark", "byte order mark left out"),
        ("single_quotes", "single quotes written as double quotes"),
    ):
        lines = [str(issue.position.line) for issue in source.issues if issue.kind == kind]
        if lines:
            log.changes.append(Change(f"line {', '.join(lines)}", what, "accelerate reads strict JSON"))
    for duplicate in source.duplicates:
        log.add(duplicate.path, f"the first of two left out (line {duplicate.first.line})", "the last one holds")
