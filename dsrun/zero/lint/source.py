"""JSON text -> values, and where in the text each of them stands.

Strict JSON is what accelerate's `json.load` takes. What people write beyond it (comments, trailing commas, Python's
True) is read too, each with an issue of its own, so that everything else in the file can still be checked."""

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from json import JSONDecodeError, JSONDecoder
from typing import Any, Literal, NamedTuple

from dsrun.datafiles import toml_beside
from dsrun.findings.finding import finding_of, text_of
from dsrun.zero.schema import Path

IssueKind = Literal["comment", "trailing_comma", "python_word", "number_word", "single_quotes", "mark"]

PATTERNS = {name: re.compile(text) for name, text in toml_beside(__file__)["patterns"].items()}
# Literal -> its value and, where JSON has not got it, the kind of issue. json.load takes the numbers too.
LITERALS: dict[str, tuple[Any, IssueKind | None]] = {
    "true": (True, None),
    "false": (False, None),
    "null": (None, None),
    "True": (True, "python_word"),
    "False": (False, "python_word"),
    "None": (None, "python_word"),
    "NaN": (math.nan, "number_word"),
    "Infinity": (math.inf, "number_word"),
    "-Infinity": (-math.inf, "number_word"),
}
# What is written the other way round in the two kinds of quotes.
SWAPPED = {"\\'": "'", '"': '\\"'}
DEEPEST = 100
# What editors on Windows put before UTF-8: Hjson passes over it, json.load stops.
MARK = "\ufeff"
DECODER = JSONDecoder()


class TextPosition(NamedTuple):
    """A place in the text; both count from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.line}:{self.column}"


class SyntaxIssue(NamedTuple):
    """Something that json.load refuses and that can be read all the same; `text` is what stands there."""

    kind: IssueKind
    position: TextPosition
    text: str


class DuplicateKey(NamedTuple):
    """A key that an object holds twice."""

    path: Path
    position: TextPosition
    first: TextPosition


@dataclass
class JsonSource:
    """The content of a JSON text. `positions` has the place of every key and of every element of a list."""

    value: Any
    positions: dict[Path, TextPosition] = field(default_factory=dict)
    issues: list[SyntaxIssue] = field(default_factory=list)
    duplicates: list[DuplicateKey] = field(default_factory=list)

    def position(self, path: Path) -> TextPosition:
        """Where the key stands, or the nearest enclosing one that does; the top of the file else."""
        while path and path not in self.positions:
            path = path[:-1]
        return self.positions.get(path, TextPosition(1, 1))


class NotJsonError(Exception):
    """Text that cannot be read on."""

    def __init__(self, message: str, position: TextPosition, fix: str = "") -> None:
        super().__init__(message)
        self.message, self.position, self.fix = message, position, fix


def read(text: str) -> JsonSource:
    """The value in a JSON text, with places, issues and duplicate keys. Raises NotJsonError."""
    source = _JsonReader(text.removeprefix(MARK)).read()
    if text.startswith(MARK):
        source.issues.insert(0, SyntaxIssue("mark", TextPosition(1, 1), MARK))
    return source


class _JsonReader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.source = JsonSource(None)
        self.starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def read(self) -> JsonSource:
        self._skip()
        self.source.value = self._value((), 0)
        self._skip()
        if self.at < len(self.text):
            raise self._error("not_json.after")
        return self.source

    def _position(self, at: int | None = None) -> TextPosition:
        at = self.at if at is None else at
        line = bisect_right(self.starts, at)
        return TextPosition(line, at - self.starts[line - 1] + 1)

    def _error(self, key: str, at: int | None = None, /, *, fix: str | None = None, **values: Any) -> NotJsonError:
        """The error of a key of dsrun/findings/text/config.toml."""
        found = finding_of(key, fix=fix, **values)
        return NotJsonError(found.message, self._position(at), found.fix)

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _skip(self) -> None:
        """Go on to the next thing that is neither blank nor comment."""
        while match := PATTERNS["skipped"].match(self.text, self.at):
            if match[1]:
                self.source.issues.append(SyntaxIssue("comment", self._position(), match[1].strip()))
            self.at = match.end()
        if self.text.startswith("/*", self.at):
            raise self._error("not_json.open_comment")

    def _value(self, path: Path, depth: int) -> Any:
        if depth > DEEPEST:
            raise self._error("not_json.deep", deepest=DEEPEST)
        head = self._peek()
        if template := PATTERNS["template"].match(self.text, self.at):
            raise self._error("not_json.placeholder", word=template.group())
        if head in ("{", "["):
            return self._object(path, depth) if head == "{" else self._list(path, depth)
        if head in ('"', "'"):
            return self._string()
        number = PATTERNS["number"].match(self.text, self.at)
        word = PATTERNS["word"].match(self.text, self.at)
        if number and word and number.end() == word.end():
            try:
                value = float(number[0]) if number[1] or number[2] else int(number[0])
            except ValueError:  # Python reads at most 4300 digits
                raise self._error("not_json.digits") from None
            self.at = number.end()
            return value
        return self._word(word)

    def _word(self, match: re.Match[str] | None) -> Any:
        word = match.group() if match else ""
        if word in LITERALS:
            value, issue = LITERALS[word]
            if issue:
                self.source.issues.append(SyntaxIssue(issue, self._position(), word))
            self.at += len(word)
            return value
        if not word:
            raise self._error("not_json.no_value" if self.at < len(self.text) else "not_json.ends")
        if PATTERNS["unfilled"].match(word):
            raise self._error("not_json.placeholder", word=word)
        number = finite(word)
        fix = None if number is None else text_of("not_json.word.number", value=number)
        raise self._error("not_json.word", fix=fix, word=word)

    def _string(self) -> str:
        start = self.at
        if self._peek() == "'":
            match = PATTERNS["single_quoted"].match(self.text, start)
            if match is None:
                raise self._error("not_json.open_quote", start)
            self.source.issues.append(SyntaxIssue("single_quotes", self._position(), match.group()))
            self.at = match.end()
            return self._single_quoted(match)
        try:
            value, self.at = DECODER.raw_decode(self.text, start)
        except JSONDecodeError as error:
            message = error.msg[0].lower() + error.msg[1:].removesuffix(" at")
            is_open = error.msg.startswith(("Unterminated", "Invalid control"))
            fix = text_of("not_json.close_quote") if is_open else ""
            raise NotJsonError(message, self._position(error.pos), fix) from None
        return str(value)

    def _single_quoted(self, match: re.Match[str]) -> str:
        inside = re.sub(r"\\.|\"", lambda found: SWAPPED.get(found.group(), found.group()), match.group(1))
        try:
            return str(DECODER.decode(f'"{inside}"'))
        except JSONDecodeError:
            raise self._error("not_json.escape", match.start()) from None

    def _members(self, closing: str) -> Iterator[None]:
        """Stop once at each member of an object or list; the caller reads it."""
        opening = self.at
        self.at += 1
        self._skip()
        while self._peek() != closing:
            if self.at >= len(self.text):
                self._no_comma(opening, closing)
            yield
            self._skip()
            comma, at = self._peek() == ",", self.at
            if comma:
                self.at += 1
                self._skip()
                if self._peek() == closing:
                    self.source.issues.append(SyntaxIssue("trailing_comma", self._position(at), ","))
            elif self._peek() != closing:
                self._no_comma(opening, closing)
        self.at += 1

    def _no_comma(self, opening: int, closing: str) -> None:
        if self.at >= len(self.text):
            raise self._error("not_json.open", opening, closing=closing)
        before = len(self.text[: self.at].rstrip())
        line = self._position(before - 1).line
        raise self._error("not_json.comma", closing=closing, line=line)

    def _object(self, path: Path, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in self._members("}"):
            position = self._position()
            if self._peek() not in ("'", '"') or not self._peek():
                raise self._error("not_json.key")
            key = self._string()
            here = (*path, key)
            if key in found:
                self.source.duplicates.append(DuplicateKey(here, position, self.source.positions[here]))
                # The last of two equal keys holds: the places inside the first no longer mean anything.
                for inside in [each for each in self.source.positions if each[: len(here)] == here]:
                    del self.source.positions[inside]
            self.source.positions[here] = position
            self._skip()
            if self._peek() != ":":
                raise self._error("not_json.colon", key=key)
            self.at += 1
            self._skip()
            found[key] = self._value(here, depth + 1)
        return found

    def _list(self, path: Path, depth: int) -> list[Any]:
        found: list[Any] = []
        for _ in self._members("]"):
            here = (*path, len(found))
            self.source.positions[here] = self._position()
            found.append(self._value(here, depth + 1))
        return found


def finite(value: Any) -> float | None:
    """The number that Python reads in a value; None for none, infinity and NaN."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def dotted(path: Sequence[str | int]) -> str:
    """`zero_optimization.offload_param.device`, `prof_ops[0]`."""
    parts = [f"[{each}]" if isinstance(each, int) else f".{each}" for each in path]
    return "".join(parts).removeprefix(".")
