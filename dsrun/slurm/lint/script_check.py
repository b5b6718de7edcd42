"""What is wrong with an sbatch script, as findings; their texts are in rules.toml."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from dsrun.findings.finding import Finding
from dsrun.messages import Message, suggestion
from dsrun.slurm.lint.environment import check_environment
from dsrun.slurm.lint.launch import rules
from dsrun.slurm.lint.launches import check_launches
from dsrun.slurm.lint.read_script import JobScript, ScriptProblem, read_script
from dsrun.slurm.render.notation import time_limit

# %j, %x, %A … are SLURM's own; only these are meant for a shell.
_SHELL = re.compile(r"\$\w|\$\{|\$\(|^~")
_MISSPELT = re.compile(r"\s*#\s*(SBATCH|sbatch|Sbatch)\b|\s+#SBATCH\b")


def check_script(text: str, file: str) -> list[Finding]:
    """The findings about an sbatch script, in the order of its lines; `file` is its name in them."""
    script = read_script(text)
    found = dict.fromkeys(
        _finding(file, *each)
        for check in (_text, _directives, _signal, _launches, check_environment)
        for each in check(script)
    ) if "\r\n" not in text else {_finding(file, 1, "crlf", {}): None}  # fmt: skip
    return sorted(found, key=lambda each: int(each.where.rpartition(":")[2]))


def _finding(file: str, line: int, code: str, words: dict[str, Any]) -> Finding:
    rule = rules()["rules"][code]
    return Finding(
        level=rule.get("level", "error"),
        code=f"script_{code}",
        message=Message(rule["message"], **words),
        fix=words.get("fix") or Message(rule.get("fix", ""), **words),
        where=f"{file}:{line}",
    )


def _launches(script: JobScript) -> Iterator[ScriptProblem]:
    return check_launches(script, "launch", "gpus")


def _text(script: JobScript) -> Iterator[ScriptProblem]:
    if not script.text.startswith("#!"):
        yield 1, "no_shebang", {}
    for each in script.ignored:
        yield each.line, "directive_ignored", {"option": f"--{each.option}", "first": script.first}
    for number, line in enumerate(script.text.splitlines(), 1):
        if number < script.first and not line.startswith("#SBATCH") and _MISSPELT.match(line):
            yield number, "directive_spelling", {"text": repr(line.strip()[:40])}


def _directives(script: JobScript) -> Iterator[ScriptProblem]:
    for each in script.directives:
        option = f"--{each.option.lstrip('-')}"
        if not each.known:
            fix = suggestion(each.option, rules()["options"]["long"])
            yield each.line, "option_unknown", {"option": option, "fix": fix}
        elif each.value and _SHELL.search(each.value):
            yield each.line, "directive_variable", {"option": option, "value": each.value}
        elif each.option == "time" and each.value and time_limit(each.value) is None:
            yield each.line, "time_invalid", {"value": each.value}
    if script.directives and not script.get("time"):
        yield script.directives[0].line, "no_time", {}
    for option in ("output", "error"):
        log = script.get(option)
        folder = str(PurePosixPath(log.value).parent) if log and log.value else "."
        makers = (each for each in script.commands if each.words[0] == "mkdir")
        made = next((each for each in makers if folder in (str(PurePosixPath(word)) for word in each.words[1:])), None)
        if log and folder != "." and made:
            yield log.line, "log_folder_late", {"value": log.value, "folder": folder, "made": made.line}


def _signal(script: JobScript) -> Iterator[ScriptProblem]:
    signal = script.get("signal")
    if signal is None or not signal.value:
        return
    name = re.sub(r"^[RB]+:", "", signal.value).partition("@")[0].removeprefix("SIG")
    trap = next((each for each in script.commands if each.words[0] == "trap" and _traps(each.words, name)), None)
    to_batch = "B" in signal.value.partition(":")[0] and ":" in signal.value
    if trap and not to_batch:
        yield signal.line, "signal_not_to_batch", {"trap": trap.line, "value": signal.value}
    # A file that it sources may set the trap; after exec, another program is the batch shell.
    elif to_batch and trap is None and not any(each.words[0] in ("exec", "source", ".") for each in script.commands):
        yield signal.line, "signal_without_trap", {}
    elif trap:
        for each in script.launches:
            if not each.background:
                yield each.line, "trap_waits", {"trap": trap.line}


def _traps(words: tuple[str, ...], name: str) -> bool:
    numbers = {"USR1": "10", "USR2": "12", "TERM": "15", "INT": "2", "HUP": "1"}
    return any(word.removeprefix("SIG") in (name, numbers.get(name)) or numbers.get(word) == name for word in words[2:])
