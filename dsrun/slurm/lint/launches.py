"""What is launched against what the job asks for, and what is assigned: the checks whose conditions rules.toml has."""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

from dsrun.datafiles import SubjectNames, evaluate
from dsrun.findings.texts import text_of
from dsrun.messages import PLACEHOLDER
from dsrun.slurm.lint.launch import ScriptLaunch, rules
from dsrun.slurm.lint.read_script import JobScript, ScriptProblem
from dsrun.system.patterns import patterns_beside
from dsrun.system.terminal.display import counted
from dsrun.system.terminal.secrets import is_secret_name

PATTERNS = patterns_beside(__file__, "rules.toml")


def check_launches(script: JobScript, *sections: str) -> Iterator[ScriptProblem]:
    """The checks of each section of all launches."""
    first = next((each for each in script.launches if each.kind != "program"), None)
    for section, launch in product(sections, script.launches):
        words = "\n".join(word for each in script.commands if each.line == launch.line for word in each.words)
        yield from _held(section, launch.line, launch, script=script, launch=launch, first=first, line_words=words)


def check_assignment(script: JobScript, line: int, name: str, value: str) -> Iterator[ScriptProblem]:
    yield from _held("assignment", line, None, script=script, name=name, value=value)


def _held(section: str, line: int, subject: ScriptLaunch | None, **names: Any) -> Iterator[ScriptProblem]:
    """The checks that hold, each with the words for its texts."""
    functions = {each.__name__: each for each in (counted_tasks, int, is_secret_name, len, matches, text_of)}
    known = SubjectNames(subject, rules()["terms"], patterns=PATTERNS, **functions, **names)
    for row in rules()[section]:
        if evaluate(row["when"], known):
            texts = rules()["rules"][row["code"]]
            words = {found[0] for found in PLACEHOLDER.findall(texts["message"] + texts.get("fix", ""))}
            given = {name: evaluate(text, known) for name, text in row.get("values", {}).items()}
            yield line, row["code"], {name: given[name] if name in given else known[name] for name in words}


def counted_tasks(count: int) -> str:
    return counted(count, "task")


def matches(pattern: str, words: Iterable[str]) -> bool:
    """Whether a pattern of rules.toml is in one of the words."""
    return any(map(PATTERNS[pattern].search, words))
