"""The rest of a script: rendezvous variables, ports, secrets, the environment, the exit code."""

import re
from collections.abc import Iterator

from dsrun.findings.texts import text_of
from dsrun.slurm.lint.launches import PATTERNS, check_assignment, check_launches
from dsrun.slurm.lint.read_script import JobScript, ScriptProblem
from dsrun.system.shell import ASSIGNMENT, commands, live
from dsrun.system.terminal.secrets import is_secret_flag, without_tokens

_CONDA_READY = re.compile(r"conda\.sh|conda shell|conda init|bashrc|profile|activate\b.*\bbase|module\s+load|\bml\s")
_SAYS_NOTHING = frozenset({"echo", "date", "printf", "sleep", "true", "ls", "nvidia-smi"})


def check_environment(script: JobScript) -> Iterator[ScriptProblem]:
    """Problems that are not about how many processes start."""
    for each in script.commands:
        for name, value in each.assignments:
            yield from check_assignment(script, each.line, name, value)
        yield from _secret_flags(each.line, each.words)
    yield from check_launches(script, "endpoint")
    yield from _on_tasks(script)
    yield from _conda(script)
    yield from _exit_code(script)


def _secret_flags(line: int, words: tuple[str, ...]) -> Iterator[ScriptProblem]:
    for before, word in zip(("", *words), words, strict=False):
        flag, equals, value = word.partition("=")
        name = flag if equals else before
        told = value if equals else word
        if (is_secret_flag(name) and len(told) >= 8 and not told.startswith(("$", "-", "/"))) or (
            without_tokens(word) != word and not ASSIGNMENT.fullmatch(word)
        ):
            told_as = name if is_secret_flag(name) else text_of("script.token", command=words[0])
            yield line, "secret", {"name": told_as}
    if words[:2] == ("wandb", "login") and re.fullmatch(r"\w{30,}", words[-1]):
        yield line, "secret", {"name": text_of("script.wandb_key")}


def _on_tasks(script: JobScript) -> Iterator[ScriptProblem]:
    """What srun's shells set, as each task has another host."""
    several = script.nodes is not None and script.nodes > 1
    for each in script.commands:
        if several and "srun" in each.words and "-c" in each.words:
            inner = commands(live(each.words[-1]), each.line)
            for name, value in (pair for one in inner for pair in one.assignments):
                if PATTERNS["address"].fullmatch(name) and PATTERNS["own_host"].fullmatch(value):
                    yield each.line, "master_per_task", {"name": name}


def _conda(script: JobScript) -> Iterator[ScriptProblem]:
    lines = script.text.splitlines()
    if re.match(r"#!.*(\s-l|--login|\s-i)\b", lines[0] if lines else ""):
        return
    for each in script.commands:
        if each.words[:2] == ("conda", "activate"):
            before = [line for line in lines[: each.line - 1] if not line.lstrip().startswith("#")]
            if not any(_CONDA_READY.search(line) for line in before):
                yield each.line, "conda_not_initialised", {}
            return


def _exit_code(script: JobScript) -> Iterator[ScriptProblem]:
    last = script.commands[-1] if script.commands else None
    if last is None or not script.launches or last.words[0] not in _SAYS_NOTHING or last.end == "&":
        return
    stops = any(
        each.words[0] == "set" and any(re.match(r"-\w*e|errexit", word) for word in each.words[1:])
        for each in script.commands
    ) or re.match(r"#!.*\s-\w*e", script.text)
    if not stops:
        yield last.line, "failure_hidden", {}
