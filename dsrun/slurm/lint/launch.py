"""What a script launches: behind srun or not, through which launcher, with which arguments."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any, Literal

from dsrun.datafiles import toml_beside
from dsrun.system.shell import ASSIGNMENT, ShellCommand, commands, expand, live

LauncherKind = Literal["torchrun", "accelerate", "deepspeed", "program"]
_KEYWORDS = frozenset({"if", "then", "do", "else", "elif", "while", "until", "!", "{", "exec", "time", "nohup", "eval"})
_PYTHON = re.compile(r"python(?:[23](?:\.\d+)?)?")
MODULES: dict[str, LauncherKind] = toml_beside(__file__, "rules.toml")["modules"]
# Programs that start another on other nodes, or in a container; what is behind them is not looked into.
_ELSEWHERE = frozenset({"mpirun", "mpiexec", "ssh", "pdsh", "clush", "parallel", "ray"})
# Words, with what the shell computes as one of them.
_WORDS = re.compile(r"(?:\$\(\([^)]*\)\)|\$\([^)]*\)|`[^`]*`|\S)+")
_SCRIPT = re.compile(r".*\.py|-m")


@dataclass(frozen=True, kw_only=True)
class ScriptLaunch:
    """A command that trains: `words` begin with the launcher or Python, `at` is its place among the script's commands.

    `srun` are the options of srun, None in the batch shell. `on_task`: the words were expanded by a shell on the nodes.
    """

    line: int
    kind: LauncherKind
    words: tuple[str, ...]
    srun: tuple[str, ...] | None = None
    on_task: bool = False
    environment: tuple[str, ...] = ()
    background: bool = False
    at: int = 0

    @property
    def name(self) -> str:
        """The launcher as users call it; of a program its file."""
        if self.kind == "program":
            return next((word for word in self.words[1:] if not word.startswith("-")), self.words[0])
        return "accelerate launch" if self.kind == "accelerate" else self.kind

    def option(self, *names: str) -> str | None:
        """The value of the first of these flags of the launcher, with hyphens or underscores; "" without a value."""
        wanted = {name.replace("_", "-") for name in names}
        for word, following in pairwise([*self.words, ""]):
            name, equals, value = word.partition("=")
            if name.replace("_", "-") in wanted:
                return value if equals else following
        return None

    def srun_number(self, *names: str) -> int | None:
        """The whole number that srun gets for one of these options."""
        for word, following in pairwise([*(self.srun or ()), ""]):
            for name in names:
                found = re.fullmatch(re.escape(name) + r"(?:=?(\d+))?", word)
                if found and (number := found[1] or following).isdigit():
                    return int(number)
        return None


@cache
def rules() -> dict[str, Any]:
    """rules.toml: options of sbatch, srun and the launchers, and the texts of the findings by their code."""
    return toml_beside(__file__, "rules.toml")


def launches(found: Sequence[ShellCommand], variables: Mapping[str, str]) -> Iterator[ScriptLaunch]:
    for at, command in enumerate(found):
        for each in _of_command(command, variables):
            yield replace(each, at=at, background=command.end == "&")


def _of_command(command: ShellCommand, variables: Mapping[str, str]) -> Iterator[ScriptLaunch]:
    words = list(_expanded(command.words, variables))
    environment: list[str] = []
    srun: tuple[str, ...] | None = None
    while words:
        word = words[0]
        if word in _KEYWORDS:
            words.pop(0)
        elif ASSIGNMENT.fullmatch(word):
            environment.append(words.pop(0))
        elif word in ("env", "command", "timeout", "stdbuf", "numactl", "nice") or (
            PurePosixPath(word).name in ("apptainer", "singularity") and words[1:2] in (["exec"], ["run"])
        ):
            words = _behind(words)
        elif word == "srun":
            srun, words = _split_srun(words[1:])
        else:
            break
    if not words or PurePosixPath(words[0]).name in _ELSEWHERE:
        return
    shell = PurePosixPath(words[0]).name
    if shell in ("bash", "sh") and "c" in (words[1:2] or [""])[0] and words[1].startswith("-") and len(words) > 2:
        for inner in commands(live(words[2]), command.line):
            for each in _of_command(inner, variables):
                on_task = srun is not None
                yield replace(each, line=command.line, srun=srun if on_task else each.srun, on_task=on_task)
        return
    if (kind := _kind(words)) is not None:
        yield ScriptLaunch(line=command.line, kind=kind, words=tuple(words), environment=tuple(environment), srun=srun)


def _expanded(words: Sequence[str], variables: Mapping[str, str]) -> Iterator[str]:
    for word in words:
        value = expand(word, variables)
        # An unquoted variable that holds a command is several words; quotes are gone here, so this is what is common.
        alone = re.fullmatch(r"\$\{?\w+(\[[@*]\])?\}?", word) and value != word
        yield from _WORDS.findall(value) if alone else [value]


def _behind(words: list[str]) -> list[str]:
    """The words from the first on that can be a program, behind a wrapper such as env or apptainer."""
    for at, word in enumerate(words[1:], 1):
        name = PurePosixPath(word).name
        if name in ("bash", "sh", "torchrun", "accelerate", "deepspeed", "srun") or _PYTHON.fullmatch(name):
            return words[at:]
    return []


def _split_srun(words: list[str]) -> tuple[tuple[str, ...], list[str]]:
    """srun's own options, and the command."""
    at, switches = 0, rules()["srun"]["switches"]
    while at < len(words) and words[at].startswith(("-", "$")):
        takes = re.fullmatch(r"--[^=]*|-[^=]", words[at]) and words[at] not in switches
        at += 2 if takes else 1
    return tuple(words[:at]), words[at:]


def _kind(words: Sequence[str]) -> LauncherKind | None:
    name = PurePosixPath(words[0]).name
    if name in ("torchrun", "deepspeed"):
        return "torchrun" if name == "torchrun" else "deepspeed"
    if name == "accelerate" and words[1:2] == ["launch"]:
        return "accelerate"
    return _kind_of_python(words) if _PYTHON.fullmatch(name) else None


def _kind_of_python(words: Sequence[str]) -> LauncherKind | None:
    """What Python runs; None for what does not train, as `python -c` and a program on standard input."""
    for word, following in pairwise([*words[1:], ""]):
        if word == "-m":
            return MODULES.get(following, "program")
        if word == "-c":
            return None
        if not word.startswith("-"):
            return "program" if _SCRIPT.fullmatch(word) or "$" in word else None
    return None
