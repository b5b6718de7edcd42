"""The simple commands of a bash script, as far as a check of it needs them: nothing is run, nothing is looked up."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from dsrun.system.terminal.secrets import masked

# Stands for a dollar sign that this shell does not expand: one in single quotes, or behind a backslash.
LITERAL_DOLLAR = "\ue000"
ASSIGNMENT = re.compile(r"(\w+)=(.*)", re.DOTALL)
DECLARATIONS = ("export", "declare", "local", "readonly")
_CLOSING = {"(": ")", "{": "}"}
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_HEREDOC = re.compile(r"<<(-?)\s*(['\"]?)(\w+)\2")


class ShellCommand(NamedTuple):
    """One simple command: its first line (from 1), its words without quotes, the operator behind it, and its words as
    they are written."""

    line: int
    words: tuple[str, ...]
    end: str = "\n"
    raw: tuple[str, ...] = ()

    @property
    def assignments(self) -> list[tuple[str, str]]:
        """Names and values that it begins with, behind export and the like or before a program."""
        words = self.words[1:] if self.words[0] in DECLARATIONS else self.words
        return [(found[1], found[2]) for found in takewhile(bool, map(ASSIGNMENT.fullmatch, words)) if found]


def commands(text: str, line: int = 1) -> list[ShellCommand]:
    """The simple commands of `text`, whose first line has the number `line`. Bodies of here-documents are left out."""
    return list(_Scanner(text, line).scan())


def expand(word: str, variables: Mapping[str, str]) -> str:
    """`word` with the known variables in it replaced by their values, also in those values."""
    for _ in range(3):
        word = _VARIABLE.sub(lambda found: variables.get(found[1] or found[2], found[0]), word)
    return word


def live(word: str) -> str:
    """`word` as the next shell reads it: what this one leaves alone, that one expands."""
    return word.replace(LITERAL_DOLLAR, "$")


class _Scanner:
    def __init__(self, text: str, line: int) -> None:
        self.text, self.line, self.at = text, line, 0
        self.word: str | None = None
        self.words: list[str] = []
        self.raw: list[str] = []
        self.start, self.began = line, 0

    def scan(self) -> Iterator[ShellCommand]:
        heredocs: list[str] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "#" and self.word is None:
                self._take(self._end_of_line() - self.at)
            elif found := _HEREDOC.match(self.text, self.at):
                heredocs.append(found[3])
                self._end_word()
                self._take(len(found[0]))
            elif char == "\n" and heredocs:
                self._take(1)
                for name in heredocs:
                    self._skip_heredoc(name)
                heredocs = []
                yield from self._end_command("\n")
            elif self.word is None and self.text.startswith("\\\n", self.at):
                self._take(2)
            elif char in " \t":
                self._end_word()
                self._take(1)
            elif char in "\n;|&()" and not self._is_redirection(char):
                end = self.text[self.at : self.at + 2] if self.text[self.at : self.at + 2] in ("&&", "||") else char
                yield from self._end_command(end)
                self._take(len(end))
            else:
                if self.word is None:
                    self.start = self.start if self.words else self.line
                    self.word, self.began = "", self.at
                self._piece(char)
        yield from self._end_command("\n")

    def _is_redirection(self, char: str) -> bool:
        """Whether an & belongs to >& or &>."""
        around = self.text[max(self.at - 1, 0)] in "<>" or self.text[self.at + 1 : self.at + 2] == ">"
        return char == "&" and around

    def _piece(self, char: str) -> None:
        """Add what begins here to the word: a character, a quotation, or an expansion."""
        assert self.word is not None
        following = self.text[self.at + 1 : self.at + 2]
        if char == "\\":
            taken = self._take(2)[1:]
            self.word += {"\n": "", "$": LITERAL_DOLLAR}.get(taken, taken)
        elif char == "'":
            quoted = self._take(self._find("'", self.at + 1) + 1 - self.at)
            self.word += quoted[1:].removesuffix("'").replace("$", LITERAL_DOLLAR)
        elif char == '"':
            self._take(1)
            while self.at < len(self.text) and self.text[self.at] != '"':
                inner = self.text[self.at]
                if inner in "\\$`":
                    self._piece(inner)
                else:
                    self.word += self._take(1)
            self._take(1)
        elif char == "`":
            self.word += self._take(self._find("`", self.at + 1) + 1 - self.at)
        elif char == "$" and following and following in _CLOSING:
            self.word += self._take(self._matching(self.at + 1) - self.at)
        else:
            self.word += self._take(1)

    def _matching(self, at: int) -> int:
        """The place behind the bracket that closes the one at `at`."""
        opening, closing, depth = self.text[at], _CLOSING[self.text[at]], 0
        while at < len(self.text):
            char = self.text[at]
            if char == "'" and opening == "(":
                at = self._find("'", at + 1)
            depth += (char == opening) - (char == closing)
            at += 1
            if depth == 0:
                break
        return at

    def _find(self, char: str, start: int) -> int:
        found = self.text.find(char, start)
        return found if found >= 0 else len(self.text)

    def _end_of_line(self) -> int:
        return self._find("\n", self.at)

    def _take(self, count: int) -> str:
        taken = self.text[self.at : self.at + count]
        self.at += count
        self.line += taken.count("\n")
        return taken

    def _skip_heredoc(self, name: str) -> None:
        while self.at < len(self.text):
            if self._take(self._end_of_line() + 1 - self.at).strip() == name:
                return

    def _end_word(self) -> None:
        if self.word is not None:
            self.words.append(self.word)
            self.raw.append(self.text[self.began : self.at])
        self.word = None

    def _end_command(self, end: str) -> Iterator[ShellCommand]:
        self._end_word()
        if self.words:
            yield ShellCommand(self.start, tuple(self.words), end, tuple(self.raw))
        self.words, self.raw = [], []


def command_lines(argv: Sequence[str], changes: Mapping[str, str | None], folder: Path | None = None) -> list[str]:
    """The changes of the environment (None: unset), a change into `folder`, and a command, ready for a shell."""
    shown = {k: v if v is None else masked([f"{k}={v}"])[0].partition("=")[2] for k, v in changes.items()}
    lines = [f"unset {k}" if v is None else f"export {k}={shlex.quote(v)}" for k, v in sorted(shown.items())]
    return [*lines, *([] if folder is None else [f"cd {shlex.quote(str(folder))}"]), command_line(argv)]


def command_line(argv: Sequence[str]) -> str:
    """A command for a shell, without its access tokens."""
    return shlex.join(masked(argv))
