"""An sbatch script, read: its directives, what it asks for, and the programs that it launches."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dsrun.errors import UsageError
from dsrun.hardware.gres import parse_gres
from dsrun.slurm.lint.launch import ScriptLaunch, launches, rules
from dsrun.slurm.render.notation import parse_gpus
from dsrun.system.shell import DECLARATIONS, ShellCommand, commands

ScriptProblem = tuple[int, str, dict[str, Any]]
"""Line, code, and the words for the braces of the rule's texts."""


@dataclass(frozen=True)
class SbatchDirective:
    """One option in an #SBATCH line: its long name, or as written where sbatch has no such option."""

    line: int
    option: str
    value: str | None
    known: bool = True


@dataclass(frozen=True, kw_only=True)
class JobScript:
    """A script as sbatch and bash read it. Lines count from 1; `first` is that of the first command."""

    text: str
    directives: tuple[SbatchDirective, ...]
    ignored: tuple[SbatchDirective, ...]
    commands: tuple[ShellCommand, ...]
    launches: tuple[ScriptLaunch, ...]
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def first(self) -> int:
        """The line of the first command; sbatch reads no directive below it."""
        return self.commands[0].line if self.commands else len(self.text.splitlines()) + 1

    def get(self, option: str) -> SbatchDirective | None:
        """The last directive of an option, which is the one that counts."""
        return next((each for each in reversed(self.directives) if each.option == option), None)

    def number(self, option: str) -> int | None:
        """The value of an option that is a whole number (of `2-4` the first)."""
        found = self.get(option)
        number = re.match(r"\d+", found.value or "") if found else None
        return int(number[0]) if number else None

    @property
    def nodes(self) -> int | None:
        """Nodes of the job; None where the directives leave it to the scheduler."""
        nodes = self.number("nodes")
        tasks, per_node = self.number("ntasks"), self.number("ntasks-per-node")
        if nodes is None and tasks and per_node:
            return -(-tasks // per_node)
        return nodes or (None if tasks and tasks > 1 else 1)

    @property
    def tasks_per_node(self) -> int | None:
        """Tasks that srun starts on a node; None where that is not known."""
        per_node, tasks, nodes = self.number("ntasks-per-node"), self.number("ntasks"), self.nodes
        if per_node is not None and not (tasks and nodes):
            return per_node
        if tasks is not None:
            return -(-tasks // nodes) if nodes else None
        per_gpu, gpus = self.number("ntasks-per-gpu"), self.gpus
        return per_gpu * gpus if per_gpu and gpus else 1

    @property
    def gpus(self) -> int | None:
        """GPUs of each node; 0 where none is asked for, None where that is not known."""
        if found := self.get("gpus-per-node"):
            parsed = parse_gpus(found.value or "")
            return parsed[1] if parsed else None
        if found := self.get("gres"):
            try:
                return sum(each.count for each in parse_gres(found.value or ""))
            except UsageError:
                return None
        return self._gpus_of_job()

    def _gpus_of_job(self) -> int | None:
        """GPUs of each node where they are asked for by job or by task."""
        if found := self.get("gpus"):
            parsed, share = parse_gpus(found.value or ""), self.nodes
            return parsed[1] // share if parsed and share and parsed[1] % share == 0 else None
        if found := self.get("gpus-per-task"):
            parsed = parse_gpus(found.value or "")
            tasks, nodes = self.number("ntasks"), self.nodes
            share = tasks // nodes if tasks and nodes and tasks % nodes == 0 else None
            tasks = self.number("ntasks-per-node") or (share if tasks else 1)
            return parsed[1] * tasks if parsed and tasks else None
        return None if self.get("gpus-per-socket") or self.get("tres-per-task") else 0


def read_script(text: str) -> JobScript:
    text = text.replace("\r\n", "\n")
    found = commands(text)
    first = found[0].line if found else len(text.splitlines()) + 1
    directives = [each for number, line in enumerate(text.splitlines(), 1) for each in _directives(number, line)]
    variables = dict(_assignments(found))
    return JobScript(
        text=text,
        directives=tuple(each for each in directives if each.line < first),
        ignored=tuple(each for each in directives if each.line > first),
        commands=tuple(found),
        launches=tuple(launches(found, variables)),
        variables=variables,
    )


def _assignments(found: list[ShellCommand]) -> Iterator[tuple[str, str]]:
    for each in found:
        if len(each.assignments) + (each.words[0] in DECLARATIONS) == len(each.words):
            # What one variable takes from itself (PATH=$PATH:x) would never end.
            yield from ((name, value) for name, value in each.assignments if f"${name}" not in value.replace("{", ""))


def _directives(number: int, line: str) -> Iterator[SbatchDirective]:
    if not line.startswith("#SBATCH"):
        return
    text = re.sub(r"\s#.*", "", line[len("#SBATCH") :])
    try:
        words = shlex.split(text)
    except ValueError:  # a quote that is not closed
        words = text.split()
    while words:
        word = words.pop(0)
        follows = bool(words) and not words[0].startswith("-")
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            known = _long_option(name)
            given = value if equals else words.pop(0) if follows else None
            yield SbatchDirective(number, known or name, given, known is not None)
        elif word.startswith("-") and len(word) > 1:
            known = rules()["options"]["short"].get(word[1])
            given = word[2:].removeprefix("=") or (words.pop(0) if follows and known else None)
            yield SbatchDirective(number, known or word, given)


def _long_option(name: str) -> str | None:
    """The option that sbatch takes `name` for: the one of this name, or the only one that begins so."""
    known = rules()["options"]["long"]
    begun = [each for each in known if each.startswith(name)] if name else []
    return name if name in known else begun[0] if len(begun) == 1 else None
