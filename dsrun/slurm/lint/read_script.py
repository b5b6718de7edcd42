"""An sbatch script, read: its directives, what it asks for, and the programs that it launches."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dsrun.datafiles import SubjectNames, evaluate
from dsrun.errors import UsageError
from dsrun.hardware.gres import parse_gres
from dsrun.slurm.lint.launch import ScriptCommand, rules
from dsrun.slurm.lint.shells import ShellReader
from dsrun.slurm.lint.variables import Variables
from dsrun.slurm.render.notation import parse_gpus
from dsrun.system.shell import DECLARATIONS, ShellCommand, commands

_BEFORE_COMMENT = re.compile(r"""(?:"(?:\\.|[^"\\])*"|'[^']*'|\S|\s(?!#))*""")
# What resources with ranks of torch are called, of other makers than NVIDIA and AMD.
_ACCELERATORS = re.compile(r"\b(dcu|mlu|npu|hpu|xpu|gcu)(?=[:/=])")
_OF_GPU = re.compile(r"^(gres[:/])?gpu:|\([^)]*\)")
ScriptProblem = tuple[int, str, dict[str, Any]]
"""Line, code, and the words for the braces of the rule's texts."""


@dataclass(frozen=True)
class SbatchDirective:
    """One option in an #SBATCH line: its long name, or as written where sbatch has no such option.

    Of a word that belongs to no option `option` is "". `lacks`: it needs a value, and has none."""

    line: int
    option: str
    value: str | None
    known: bool = True
    lacks: bool = False


@dataclass(frozen=True, kw_only=True)
class JobScript:
    """A script as sbatch and bash read it. Lines count from 1; `first` is that of the first command.

    `commands` are those of the batch shell as they are written, `started` those of all shells, with their values. Of a
    heterogeneous job the directives are those of its first part. `exported` are the batch shell's exports, `arrays` its
    lists; `unclosed` is the line of a block that nothing ends."""

    text: str
    directives: tuple[SbatchDirective, ...]
    ignored: tuple[SbatchDirective, ...]
    commands: tuple[ShellCommand, ...]
    started: tuple[ScriptCommand, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    exported: frozenset[str] = frozenset()
    arrays: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    heterogeneous: bool = False
    unclosed: int | None = None

    @property
    def launches(self) -> tuple[ScriptCommand, ...]:
        """The commands that train."""
        return tuple(each for each in self.started if each.kind)

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

    def _of_job(self, name: str) -> int | None:
        """An expression of rules.toml, [job], about the directives; None where it is not known."""
        value: int | None = evaluate(rules()["job"][name], SubjectNames(self, rules()["job"], gpus_in=gpus_in))
        return value

    @property
    def nodes(self) -> int | None:
        """Nodes of the job; None where the directives leave it to the scheduler."""
        return self._of_job("job_nodes")

    @property
    def tasks(self) -> int | None:
        """Tasks of the job."""
        return self._of_job("job_tasks")

    @property
    def tasks_per_node(self) -> int | None:
        """Tasks that srun starts on a node."""
        return self._of_job("node_tasks")

    @property
    def gpus(self) -> int | None:
        """GPUs of each node; 0 where none is asked for."""
        return self._of_job("node_gpus")


def gpus_in(text: str | None, *, gres: bool = False) -> int | None:
    """GPUs in a value of --gpus and the like, or of --gres; None where there are none told."""
    if text in ("none", "NONE"):
        return 0
    text = _ACCELERATORS.sub("gpu", text or "")
    try:
        found = sum(each.count for each in parse_gres(text)) if gres else parse_gpus(_OF_GPU.sub("", text))
    except UsageError:
        return None
    return found if found is None or isinstance(found, int) else found[1]


def read_script(text: str) -> JobScript:
    text = text.replace("\r\n", "\n")
    found = commands(text)
    first = found[0].line if found else len(text.splitlines()) + 1
    directives = [each for number, line in enumerate(text.splitlines(), 1) for each in _directives(number, line)]
    parts = [each.line for each in directives if not each.option and each.value in ("hetjob", "packjob")]
    last = min([first, *parts])
    reader = ShellReader(Variables())
    started = tuple(reader.read(found))
    return JobScript(
        text=text,
        directives=tuple(each for each in directives if each.line < last),
        ignored=tuple(each for each in directives if each.line > first and each.line not in in_documents(found)),
        commands=tuple(found),
        started=started,
        variables=dict(_assignments(found)),
        exported=frozenset(reader.variables.seen if reader.variables.all_exported else reader.variables.exported),
        arrays=reader.variables.arrays,
        heterogeneous=bool(parts),
        unclosed=reader.blocks[-1].line if reader.blocks else None,
    )


def _assignments(found: list[ShellCommand]) -> Iterator[tuple[str, str]]:
    for each in found:
        if len(each.assignments) + (each.words[0] in DECLARATIONS) == len(each.words):
            # What one variable takes from itself (PATH=$PATH:x) would never end.
            yield from ((name, value) for name, value in each.assignments if f"${name}" not in value.replace("{", ""))


def in_documents(found: Iterable[ShellCommand]) -> frozenset[int]:
    """The lines of here-documents."""
    documents = ((each.lines[-1] + 1, each.document.count("\n")) for each in found if each.document)
    return frozenset(line for first, count in documents for line in range(first, first + count))


def _directives(number: int, line: str) -> Iterator[SbatchDirective]:
    if not line.startswith("#SBATCH"):
        return
    text = _BEFORE_COMMENT.match(line, len("#SBATCH"))[0]  # type: ignore[index]  # matches anything
    try:
        words = shlex.split(text)
    except ValueError:  # a quote that is not closed
        words = text.split()
    table = rules()["options"]
    while words:
        word = words.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or not name:
            yield SbatchDirective(number, "", word)
        elif word.startswith("--"):
            known = _long_option(name)
            takes = not equals and known not in (*table["flags"], *table["may_have_value"])
            lacks = bool(takes and known and not words)
            follows = takes and words and (known or not words[0].startswith("-"))
            yield SbatchDirective(
                number, known or name, words.pop(0) if follows else value if equals else None, known is not None, lacks
            )
        elif len(name) > 2 and (long := _long_option(name)) and long[0] == name[0]:
            yield SbatchDirective(number, word, None, known=False)  # a long option with one hyphen
        else:
            known = table["short"].get(word[1])
            if known in table["flags"] and len(word) > 2:
                words.insert(0, f"-{word[2:]}")
            given = None if known in table["flags"] else word[2:] or (words.pop(0) if words and known else None)
            lacks = given is None and known is not None and known not in (*table["flags"], *table["may_have_value"])
            yield SbatchDirective(number, known or word, given, known is not None, lacks)


def _long_option(name: str) -> str | None:
    """The option that sbatch takes `name` for: the one of this name, or the only one that begins so."""
    known, synonyms = rules()["options"]["long"], rules()["options"]["synonyms"]
    begun = {synonyms.get(each, each) for each in (*known, *synonyms) if each.startswith(name)} if name else set()
    return synonyms.get(name, name) if name in (*known, *synonyms) else begun.pop() if len(begun) == 1 else None
