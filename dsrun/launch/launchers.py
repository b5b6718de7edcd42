"""Launchers of workers in a program that itself runs once per GPU: by name, behind other commands, in shell scripts."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from dsrun.datafiles import toml_beside

PYTHON = re.compile(r"python(?:3(?:\.\d+)?)?")
_TABLE = toml_beside(__file__)
_SCHEDULERS = frozenset(_TABLE["schedulers"])
LAUNCHERS = _SCHEDULERS.union(_TABLE["launchers"])
"""What starts workers itself: as programs, and as Python's modules."""
TRAINERS: Mapping[str, str] = _TABLE["trainers"]
"""Commands that start workers for training, and the module that each of these runs; "" where it is not known."""
_CHOICES: Mapping[str, Mapping[str, str]] = _TABLE["choices"]
_WRAPPERS, _RUNNERS = _TABLE["wrappers"], _TABLE["runners"]
SHELLS = frozenset({"bash", "sh", "dash", "zsh"})
_BEFORE_COMMANDS = frozenset({"if", "then", "do", "else", "elif", "while", "until", "!", "{", "command", "eval"})
ASSIGNMENT = re.compile(r"\w+=.*", re.DOTALL)
_DIRECTIVE = re.compile(r"^#SBATCH\s", re.MULTILINE)
_LONGEST_SCRIPT = 1 << 18


def launcher_in(argv: Sequence[str]) -> str | None:
    """The launcher that the command `argv` starts, itself or through other commands; None for none."""
    words = list(argv)
    while words:
        base = PurePosixPath(words[0]).name
        command = f"{base} {' '.join(words[1:2])}"
        if base in LAUNCHERS or command in TRAINERS:
            alone = _starts_none(_CHOICES.get(command, {}), words[2:])
            return base if base in LAUNCHERS else None if alone else command
        if PYTHON.fullmatch(base):
            module = _module(words[1:])
            return next((name for name in (*module[:1], " ".join(module)) if name in LAUNCHERS | TRAINERS.keys()), None)
        if base == "dsrun":
            return next((f"dsrun {name}" for name in words[1:2] if name in ("launch", "render-slurm")), None)
        if base in SHELLS:
            return _in_shell(words[1:])
        if base in _BEFORE_COMMANDS or ASSIGNMENT.fullmatch(words[0]):
            words = words[1:]
        elif base in _WRAPPERS:
            words = _behind_options(words[1:], _WRAPPERS[base])[base == "timeout" :]  # its first word is the time
        elif base in _RUNNERS:
            words = _behind_run(words[1:], _RUNNERS[base])
        else:
            return None
    return None


def _starts_none(choice: Mapping[str, str], words: Sequence[str]) -> bool:
    """Whether a command of TRAINERS is a worker itself, by its words or by the variables here."""
    if "variables" in choice:
        return not any(map(os.environ.get, choice["variables"].split()))
    return bool(choice and re.search(choice["none"], shlex.join(words)))


def trainer_fix(launcher: str, words: Sequence[str]) -> str:
    """What to write instead of a command of TRAINERS with these words; "" for others, and where that is unknown."""
    choice, module = _CHOICES.get(launcher, {}), TRAINERS.get(launcher)
    if "fix" in choice or not module:
        return choice.get("fix", "")
    rest = re.sub(choice.get("all", ""), "", shlex.join(words))
    return f"-- python -m {module} {rest.strip() or 'CONFIG.yml'}"


def _module(words: Sequence[str]) -> Sequence[str]:
    """The module of Python's -m, if its arguments have one before the script, and the word behind it."""
    words = _behind_options(words, "-X -W", end="-m")
    return words[1:3] if words[:1] == ["-m"] else ()


def _behind_options(words: Sequence[str], valued: str, end: str = "") -> list[str]:
    """`words` from the first that is neither an option, nor its value, nor NAME=VALUE; or from `end`."""
    at = 0
    while at < len(words) and words[at] != end and (words[at].startswith("-") or ASSIGNMENT.fullmatch(words[at])):
        at += 2 if words[at] in valued.split() else 1
    return list(words[at:])


def _behind_run(words: Sequence[str], valued: str) -> list[str]:
    """The command of `uv run …` and the like; with -m of uv it is Python's module."""
    words = _behind_options(words, valued)
    if words[:1] != ["run"]:
        return []
    inner = _behind_options(words[1:], valued, end="-m")
    return ["python", *inner] if inner[:1] == ["-m"] else inner


def _in_shell(words: Sequence[str]) -> str | None:
    """A launcher of `bash -c TEXT`, or the name of a batch script that bash would run."""
    if words and words[0].startswith("-") and words[0].endswith("c"):
        found = _in_commands(words[1]) if len(words) > 1 else None
        return found[1] if found else None
    return next((word for word in words[:1] if word.endswith((".sbatch", ".slurm"))), None)


def _in_commands(text: str) -> tuple[int, str] | None:
    """Line and name of the first launcher of training among the commands of a shell script.

    A worker may well submit the next job; srun and mpirun are left out likewise.
    """
    from dsrun.system.shell import commands, live  # few programs are shell scripts

    for each in commands(text):
        name = launcher_in([live(word) for word in each.words])
        if name and name not in _SCHEDULERS:
            return each.line, name
    return None


def refuse_scripts(argv: Sequence[str], cwd: Path) -> None:
    """Raise UsageError for a program that is a shell script for sbatch, or that starts workers itself."""
    words = argv[1:] if PurePosixPath(argv[0]).name in SHELLS else argv
    text = _shell_script(cwd / words[0], is_one=words is not argv) if words else None
    if text is None:
        return
    from dsrun.launch.refusals import refusal  # few programs are shell scripts

    if _DIRECTIVE.search(text):
        raise refusal("script.of_sbatch", script=words[0])
    if found := _in_commands(text):
        raise refusal("script.starts_workers", script=words[0], line=found[0], launcher=found[1])


def _shell_script(path: Path, *, is_one: bool) -> str | None:
    """The text of a shell script; None for other files."""
    try:
        with path.open("rb") as file:
            text = file.read(_LONGEST_SCRIPT).decode("utf-8", "replace")
    except (OSError, ValueError):
        return None
    first = text.partition("\n")[0]
    return text if is_one or (first.startswith("#!") and re.search(r"\b(ba|da|z)?sh\b", first)) else None
