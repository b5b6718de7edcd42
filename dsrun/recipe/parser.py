"""argv -> what was given. argparse splits the words; every message and every conversion is ours."""

import argparse
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from dsrun.errors import UsageError, did_you_mean, nearest
from dsrun.recipe.compat.removed import answer, vocabulary
from dsrun.recipe.flags import RecipeFlag, normalise
from dsrun.recipe.parsed_value import COMMAND_LINE, ParsedValue, describe, from_data, from_words
from dsrun.system.files import parse_json

HELP = "`dsrun train --help` lists all flags"
# argparse takes -1 and -.5 for values but -1e-4 for a flag (bpo-9334); such a word is joined to the flag
# before it.
NEGATIVE = re.compile(r"^-(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?$")
# "--do" and "--lr" may mean anything.
SHORTEST = 4
NARGS: dict[str, str] = {"bool": "?", "bool|str": "?", "list": "+", "list|str": "+"}


class ParsedFlags(NamedTuple):
    """What a command line gives: its flags in order, and the JSON file of flags that it names, if any."""

    given: tuple[ParsedValue, ...]
    json_file: str | None


class _Splitter(argparse.ArgumentParser):
    """argparse that neither prints nor exits."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, fix=HELP)


class _Record(argparse.Action):
    """Append (spelling, words) in order, so that a flag given twice stays visible."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        arguments = [values] if isinstance(values, str) else list(values or ())
        namespace.found.append((str(option_string), self.const, arguments))


@cache
def _splitter() -> _Splitter:
    splitter = _Splitter(add_help=False, allow_abbrev=False, exit_on_error=False, argument_default=argparse.SUPPRESS)
    known = vocabulary()
    for spelling, flag in known.items():
        splitter.add_argument(f"--{spelling}", action=_Record, nargs=NARGS.get(flag.kind), dest=spelling)
        if flag.kind == "bool" and f"no_{spelling}" not in known:
            splitter.add_argument(f"--no_{spelling}", action=_Record, nargs=0, const="false", dest=spelling)
    return splitter


def parse(argv: Sequence[str]) -> ParsedFlags:
    """Read a command line.

    Raises UsageError for an unknown flag (with the nearest known one), a value that the flag does not take, a
    missing value, and a word that belongs to no flag."""
    arguments, typed = _tidied(argv)
    namespace = argparse.Namespace(found=[])
    try:
        _, rest = _splitter().parse_known_args(arguments, namespace)
    except argparse.ArgumentError as error:
        raise _complaint(error, typed) from None
    json_file = _only_json(rest, typed)
    return ParsedFlags(tuple(_read(*each, typed=typed) for each in namespace.found), json_file)


def loose_words(argv: Sequence[str]) -> list[str]:
    """The words of a command line that belong to no flag, for commands that take files. Where `parse` refuses the rest,
    it is left to that."""
    try:
        _, rest = _splitter().parse_known_args(_tidied(argv)[0], argparse.Namespace(found=[]))
    except argparse.ArgumentError:
        return []
    return [] if any(word.startswith("-") for word in rest) else rest


def _tidied(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """argv with underscores in flag names and negative numbers joined, and how each flag was typed."""
    arguments: list[str] = []
    typed: dict[str, str] = {}
    for word in argv:
        if word == "--":  # some launchers leave it in front of a program's own flags
            continue
        name, equals, value = word.partition("=")
        if word.startswith("--") and " " not in name:
            whole = _whole(normalise(name))
            flag = f"--{whole}"
            typed[flag] = name if whole == normalise(name) else f"{name} (taken as {flag})"
            arguments.append(f"{flag}{equals}{value}")
        elif NEGATIVE.match(word) and arguments and _takes_one_value(arguments[-1]):
            arguments[-1] += f"={word}"
        else:
            arguments.append(word)
    return arguments, typed


def _whole(name: str) -> str:
    """The flag that `name` begins, of those of Transformers and its example scripts, whose parser took the beginning of
    a flag for it. `name` itself where it is a flag, begins several, or ends inside a word, as typing errors do."""
    known = vocabulary()
    if name in known or name.removeprefix("no_") in known or len(name) < SHORTEST:
        return name
    begun = [spelling for spelling in known if spelling.startswith(f"{name}_")]
    flags = {known[spelling].name: known[spelling] for spelling in begun}
    taken = [each for each in flags.values() if each.owner == "hf" or each.example_scripts]
    return begun[0] if len(flags) == 1 and taken else name


def _takes_one_value(word: str) -> bool:
    flag = vocabulary().get(normalise(word)) if word.startswith("--") else None
    return flag is not None and flag.kind not in ("list", "list|str")


def _read(option: str, const: str | None, arguments: list[str], *, typed: dict[str, str]) -> ParsedValue:
    """One flag with its words; a bare switch means true, `--no_x` false."""
    spelling = option.removeprefix("--")
    flag = vocabulary().get(spelling) or vocabulary()[spelling.removeprefix("no_")]
    values = arguments or [const or "true"]
    return from_words(flag, values, spelling=spelling, source=COMMAND_LINE, where=typed[option])


def _complaint(error: argparse.ArgumentError, typed: dict[str, str]) -> UsageError:
    """argparse knows two complaints here: a value is missing, or `--no_x=1` has one too many."""
    option = str(error.argument_name)
    name = typed.get(option, option)
    if "expected" in error.message:
        return UsageError(f"{name}: a value is missing", fix=f"it takes {describe(vocabulary()[normalise(option)])}")
    return UsageError(f"{name} takes no value", fix=f"write {name} alone")


def _only_json(rest: Sequence[str], typed: dict[str, str]) -> str | None:
    """The JSON file among the words that belong to no flag; anything else there is an error."""
    options = [word.partition("=")[0] for word in rest if word.startswith("-") and not NEGATIVE.match(word)]
    if options:
        raise unknown_flags([typed.get(option, option) for option in options])
    for word in rest:
        if not word.endswith(".json") or len(rest) > 1:
            raise UsageError(f"{word!r} belongs to no flag", fix="write --flag value; a value with spaces needs quotes")
    return rest[0] if rest else None


def unknown_flags(names: Sequence[str]) -> UsageError:
    """The error for unknown flags: ours for one of another tool, else the nearest known one of each."""
    of_others = next(filter(None, (answer(name, normalise(name)) for name in names)), None)
    if of_others:
        return of_others
    near = {name: nearest(normalise(name).removeprefix("no_"), vocabulary()) for name in names}
    hints = {name: shown_like(name, match) for name, match in near.items() if match}
    if len(near) == 1:
        hint = next(iter(hints.values()), None)
        return UsageError(f"unknown flag {names[0]}", fix=f"did you mean {hint}?" if hint else HELP)
    each = ", ".join(f"{name} (did you mean {hints[name]}?)" if name in hints else name for name in near)
    return UsageError(f"unknown flags {each}", fix=None if len(hints) == len(near) else HELP)


def shown_like(typed: str, spelling: str) -> str:
    """A spelling the way the user writes flags: with the hyphens or underscores of `typed`."""
    if "_" in typed:
        return f"--{spelling}"
    flag: RecipeFlag = vocabulary()[spelling]
    return f"--{spelling.replace('_', '-')}" if flag.owner == "dsrun" or "-" in typed.strip("-") else f"--{spelling}"


def read_json(path: Path, shown: str) -> tuple[ParsedValue, ...]:
    """The flags in a JSON file, as the example scripts read `script.py args.json`.

    `shown` is the path as the user wrote it. Raises UsageError for a file that cannot be read, is not a JSON
    object, or holds an unknown key or a wrong value."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{shown}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{shown}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise UsageError(f"{shown}: not a JSON object", fix='write {"flag": value, …}')
    return tuple(_from_json(shown, key, value) for key, value in content.items() if value is not None)


def _from_json(shown: str, key: str, value: Any) -> ParsedValue:
    flag = vocabulary().get(normalise(key))
    where = f"{shown}: {key}"
    if flag is None:
        near = did_you_mean(key, vocabulary(), HELP)
        raise answer(where, normalise(key)) or UsageError(f"{where}: unknown flag", fix=near)
    return from_data(flag, value, spelling=normalise(key), source=shown, where=where)
