"""Questions and answers: from an option, from the terminal, or by default; each answer checked as it is given.

Questions go to stderr, as stdout is for the file."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import click

from dsrun.datafiles import toml_beside
from dsrun.errors import MissingError, UsageError, did_you_mean
from dsrun.system.terminal.display import cells, fitted, padded, printable, terminal_width
from dsrun.system.terminal.stderr import print_detail, print_error

T = TypeVar("T")


class InitAnswer(NamedTuple, Generic[T]):
    """A checked answer; `source` says where it came from, for the comment beside it."""

    value: T
    source: str


@dataclass(frozen=True, kw_only=True)
class InitQuestion(Generic[T]):
    """One question.

    `check` makes the value of a text, and raises UsageError or MissingError for an answer that cannot be. `choices` are
    (answer, description) pairs that are offered by number; others are taken, too, but where `only` is the error for
    them. `default` is None where nothing can be proposed: then `needed` says what to give. `why` says where the default
    came from. `named`: without a terminal the default counts with --yes only. `counts`: a number that is not one of a
    choice may be the answer."""

    flag: str
    text: str
    check: Callable[[str], T]
    choices: Sequence[tuple[str, str]] = ()
    default: str | None = None
    why: str = "default"
    needed: str = "give it"
    named: bool = False
    counts: bool = False
    only: str = ""

    @property
    def name(self) -> str:
        """What stands before the cursor."""
        return self.flag.lstrip("-").replace("-", " ")


QUESTIONS = toml_beside(__file__, "questions.toml")
"""What is always the same of a question, by its flag."""


def question(flag: str, check: Callable[[str], T], **more: Any) -> InitQuestion[T]:
    """The question for an option, with what this run adds."""
    return InitQuestion(flag=flag, check=check, **{**QUESTIONS[flag], **more})


class InitInterview:
    """Asks on the terminal; without one, or with --yes, takes options and defaults."""

    def __init__(self, *, accept_defaults: bool) -> None:
        self.accepts = accept_defaults
        # Both streams: a question in a log file waits for ever.
        streams = (sys.stdin, sys.stderr)
        self.asks = not accept_defaults and all(each is not None and each.isatty() for each in streams)
        if self.asks and isinstance(sys.stdin, TextIOWrapper):
            # A key of another encoding is a wrong answer, and no reason to end.
            sys.stdin.reconfigure(errors="surrogateescape")

    def answer(self, question: InitQuestion[T], given: str | None) -> InitAnswer[T]:
        """The answer to a question; `given` is the value of its option.

        Raises UsageError for an option with a wrong value and for one that is needed, click.Abort for the end of the
        input."""
        if given is not None:
            return InitAnswer(_checked(question, given), f"as {question.flag} says")
        if self.asks:
            return self._from_terminal(question)
        if question.default is None or (question.named and not self.accepts):
            why = "" if self.accepts else "there is no terminal to ask on: "
            hint = f", or --yes for {question.default}" if question.default is not None else ""
            raise UsageError(f"{question.flag} is needed", fix=f"{why}{question.needed}{hint}")
        return InitAnswer(_checked(question, question.default), question.why)

    def _from_terminal(self, question: InitQuestion[T]) -> InitAnswer[T]:
        _print_question(question)
        shown = "" if question.default is None else f" [{printable(question.default)}]"
        while True:
            typed = _read_line(f"{question.name}{shown}: ")
            text = _meant(question, typed)
            if text is None:
                print_error(f"an answer is needed ({question.needed})")
                continue
            try:
                value = _checked(question, _offered(question, text))
            except (UsageError, MissingError) as error:
                print_error(str(error))
                continue
            return InitAnswer(value, question.why if text == question.default else "your answer")


def _checked(question: InitQuestion[T], text: str) -> T:
    if not text or not text.isprintable():
        what = "contains characters that cannot be shown" if text else "is empty"
        raise UsageError(f"{question.flag} {what}", fix=question.needed)
    known = dict(question.choices)
    if question.only and text not in known:
        raise UsageError(question.only.format(text=text), fix=did_you_mean(text, known))
    return question.check(text)


def _meant(question: InitQuestion[T], typed: str) -> str | None:
    """The answer behind what was typed: a number for a choice, nothing for the default."""
    if not typed:
        return question.default
    if typed.isascii() and typed.isdecimal() and 1 <= int(typed[:9]) <= len(question.choices):
        return question.choices[int(typed) - 1][0]
    return typed


def _offered(question: InitQuestion[T], text: str) -> str:
    """The answer, but for the number of a choice that there is not: a name on the Hub could be 7."""
    is_name = question.counts or text in [answer for answer, _ in question.choices] or Path(text).exists()
    if question.choices and text.lstrip("-").isdecimal() and not is_name:
        raise UsageError(f"there is no choice {text}", fix=f"1 to {len(question.choices)}, or the answer itself")
    return text


def _print_question(question: InitQuestion[T]) -> None:
    plain = bool(os.environ.get("NO_COLOR"))
    text = fitted(question.text, terminal_width(sys.stderr), hang=0)
    click.secho(f"\n{text}", bold=True, err=True, color=False if plain else None)
    width = max((cells(printable(answer)) for answer, _ in question.choices), default=0)
    for number, (answer, description) in enumerate(question.choices, 1):
        print_detail(f"  {number})  {padded(printable(answer), width)}  {description}".rstrip(), hang=width + 8)


def _read_line(prompt: str) -> str:
    """One line of the terminal without its blanks. Raises click.Abort for its end and for Ctrl-C."""
    click.echo(prompt, nl=False, err=True)
    try:
        line = sys.stdin.readline()
    except KeyboardInterrupt:
        line = ""
    if not line:
        click.echo(err=True)
        raise click.Abort
    return line.strip()
