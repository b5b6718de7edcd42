"""What is wrong with an sbatch script, as findings; their texts are in rules.toml."""

import re
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import PurePosixPath
from typing import Any

from dsrun.datafiles import SubjectNames, evaluate
from dsrun.findings.finding import Finding
from dsrun.findings.texts import text_of
from dsrun.messages import PLACEHOLDER, Message, suggestion
from dsrun.slurm.lint.launch import ScriptLaunch, rules
from dsrun.slurm.lint.read_script import JobScript, ScriptProblem, read_script
from dsrun.slurm.render.notation import time_limit
from dsrun.system.patterns import patterns_beside
from dsrun.system.shell import ASSIGNMENT, commands, live
from dsrun.system.terminal.display import counted
from dsrun.system.terminal.secrets import is_secret_flag, is_secret_name, without_tokens

# %j, %x, %A … are SLURM's own; only these are meant for a shell.
_SHELL = re.compile(r"\$\w|\$\{|\$\(|^~")
_MISSPELT = re.compile(r"\s*#\s*(SBATCH|sbatch|Sbatch)\b|\s+#SBATCH\b")
_CONDA_READY = re.compile(r"conda\.sh|conda shell|conda init|bashrc|profile|activate\b.*\bbase|module\s+load|\bml\s")
PATTERNS = patterns_beside(__file__, "rules.toml")
_SAYS_NOTHING = frozenset({"echo", "date", "printf", "sleep", "true", "ls", "nvidia-smi"})


def check_script(text: str, file: str) -> list[Finding]:
    """The findings about an sbatch script, in the order of its lines; `file` is its name in them."""
    script = read_script(text)
    found = dict.fromkeys(
        _finding(file, *each)
        for check in (_text, _directives, _signal, _of_launches, _environment)
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


def _of_launches(script: JobScript, *sections: str) -> Iterator[ScriptProblem]:
    """The checks of these sections of rules.toml, those about workers and GPUs by default, of all launches."""
    first = next((each for each in script.launches if each.kind != "program"), None)
    for section, launch in product(sections or ("launch", "gpus"), script.launches):
        words = "\n".join(word for each in script.commands if each.line == launch.line for word in each.words)
        yield from _held(section, launch.line, launch, script=script, launch=launch, first=first, line_words=words)


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


def _environment(script: JobScript) -> Iterator[ScriptProblem]:
    """Problems that are not about how many processes start."""
    for each in script.commands:
        for name, value in each.assignments:
            yield from _held("assignment", each.line, None, script=script, name=name, value=value)
        yield from _secret_flags(each.line, each.words)
    yield from _of_launches(script, "endpoint")
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
