"""The simple commands of a bash script, as far as a check of it needs them: nothing is run, nothing is looked up."""

import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from dsrun.system.terminal.secrets import masked

# Stands for a dollar sign that this shell does not expand: one in single quotes, or behind a backslash.
LITERAL_DOLLAR = "\ue000"
# Stands for one in front of what an earlier shell has expanded to something that is not known.
EARLIER_DOLLAR = "\ue001"
ASSIGNMENT = re.compile(r"(\w+)=(.*)", re.DOTALL)
DECLARATIONS = ("export", "declare", "local", "readonly", "typeset")
_CLOSING = {"(": ")", "{": "}"}
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_HEREDOC = re.compile(r"<<-?\s*(['\"\\]?)(\w+)['\"]?")
_ARRAY = re.compile(r"\w+\+?=")


class ShellCommand(NamedTuple):
    """One simple command: its first line (from 1), its words without quotes, the operator behind it, its words as they
    are written, the line of each, and the text of its here-document as the next shell reads it.

    The elements of an array are a command that ends with ")", behind one that ends with NAME= and "("."""

    line: int
    words: tuple[str, ...]
    end: str = "\n"
    raw: tuple[str, ...] = ()
    lines: tuple[int, ...] = ()
    document: str | None = None

    @property
    def assignments(self) -> list[tuple[str, str]]:
        """Names and values that it begins with, behind export and the like or before a program."""
        words = self.words[1:] if self.words[0] in DECLARATIONS else self.words
        return [(found[1], found[2]) for found in takewhile(bool, map(ASSIGNMENT.fullmatch, words)) if found]


def commands(text: str, line: int = 1) -> list[ShellCommand]:
    """The simple commands of `text`, whose first line has the number `line`."""
    return _Scanner(text, line).scan()


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
        self.lines: list[int] = []
        self.began = 0
        self.in_array = False
        self.found: list[ShellCommand] = []

    def scan(self) -> list[ShellCommand]:
        # The names that end here-documents, whether a shell expands these, and the place of their command.
        heredocs: list[tuple[str, bool, int]] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "#" and self.word is None:
                self._take(self._end_of_line() - self.at)
            elif self.text.startswith("<<<", self.at):
                self._end_word()
                self._take(3)
            elif found := _HEREDOC.match(self.text, self.at):
                heredocs.append((found[2], not found[1], len(self.found)))
                self._end_word()
                self._take(len(found[0]))
            elif char == "\n" and heredocs:
                self._end_command("\n")
                self._take(1)
                for each in heredocs:
                    self._document(*each)
                heredocs = []
            elif self.word is None and self.text.startswith("\\\n", self.at):
                self._take(2)
            elif char in " \t" or (char == "\n" and self.in_array):
                self._end_word()
                self._take(1)
            elif char in "\n;|&()" and not (self._is_redirection(char) or self._is_arithmetic() or self._in_test(char)):
                end = self.text[self.at : self.at + 2] if self.text[self.at : self.at + 2] in ("&&", "||") else char
                self.in_array = char == "(" and bool(_ARRAY.fullmatch(self.word or ""))
                self._end_command(end)
                self._take(len(end))
            else:
                if self.word is None:
                    self.lines.append(self.line)
                    self.word, self.began = "", self.at
                self._piece(char)
        self._end_command("\n")
        return self.found

    def _is_arithmetic(self) -> bool:
        """Whether ((…)) begins here, a command by itself."""
        return self.word is None and self.text.startswith("((", self.at)

    def _in_test(self, char: str) -> bool:
        """Whether a character is an operator within [[ … ]]."""
        return char in "|&()" and "[[" in self.words[:2] and "]]" not in self.words

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
        elif char in ("$", EARLIER_DOLLAR) and following and following in _CLOSING:
            self.word += self._take(self._matching(self.at + 1) - self.at)
        elif char == "(":
            self.word += self._take(self._matching(self.at) - self.at)
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

    def _document(self, name: str, expanded: bool, owner: int) -> None:
        """Read a here-document to its end, for the command at the place `owner`."""
        start = self.at
        end = start
        while self.at < len(self.text):
            end = self.at
            if self._take(self._end_of_line() + 1 - self.at).strip() == name:
                break
        else:
            end = self.at
        if owner < len(self.found):
            text = self.text[start:end]
            kept = r"\\([\\$`])" if expanded else "([$])"
            text = re.sub(kept, lambda each: LITERAL_DOLLAR if each[1] == "$" else each[1], text)
            self.found[owner] = self.found[owner]._replace(document=text)

    def _end_word(self) -> None:
        if self.word is not None:
            self.words.append(self.word)
            self.raw.append(self.text[self.began : self.at])
        self.word = None

    def _end_command(self, end: str) -> None:
        self._end_word()
        if self.words:
            lines = tuple(self.lines)
            self.found.append(ShellCommand(lines[0], tuple(self.words), end, tuple(self.raw), lines))
        elif end == "&" and self.found and self.found[-1].end == ")":  # that of a subshell
            self.found[-1] = self.found[-1]._replace(end=end)
        self.words, self.raw, self.lines = [], [], []


def command_lines(argv: Sequence[str], changes: Mapping[str, str | None], folder: Path | None = None) -> list[str]:
    """The changes of the environment (None: unset), a change into `folder`, and a command, ready for a shell."""
    shown = {k: v if v is None else masked([f"{k}={v}"])[0].partition("=")[2] for k, v in changes.items()}
    lines = [f"unset {k}" if v is None else f"export {k}={shlex.quote(v)}" for k, v in sorted(shown.items())]
    return [*lines, *([] if folder is None else [f"cd {shlex.quote(str(folder))}"]), command_line(argv)]


def command_line(argv: Sequence[str]) -> str:
    """A command for a shell, without its access tokens."""
    return shlex.join(masked(argv))
