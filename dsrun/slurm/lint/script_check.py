"""What is wrong with an sbatch script, as findings; which, and their texts, are in rules.toml. And what the conditions
there ask about the steps of a job, and about what its nodes have for themselves."""

import re
import subprocess
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

from dsrun.datafiles import SubjectNames, evaluate
from dsrun.findings.finding import Finding, has_errors, text_of
from dsrun.messages import PLACEHOLDER, Message
from dsrun.slurm.lint.launch import ScriptCommand, rules
from dsrun.slurm.lint.read_script import JobScript, ScriptProblem, in_documents, read_script
from dsrun.slurm.lint.script_facts import PATTERNS, ScriptFacts, group, matches, shown
from dsrun.system.shell import ASSIGNMENT
from dsrun.system.terminal.secrets import is_secret_flag, without_tokens


def _places(text: str) -> list[str]:
    """The folders in a text that each node has for itself."""
    return [re.sub(r"[{}]|/\Z", "", each) for each in PATTERNS["of_one_node"].findall(text)]


def _same(place: str, other: str) -> bool:
    """Whether one of two folders is, or is in, the other."""
    return f"{place}/".startswith(f"{other}/") or f"{other}/".startswith(f"{place}/")


class StepFacts(ScriptFacts):
    """Those of a script, with those of its steps."""

    @staticmethod
    def port_of(launch: ScriptCommand) -> str | None:
        """What a launch is given for its port."""
        return launch.option("--master-port", "--main-process-port", "--rdzv-endpoint", "--standalone")

    def trains_inside(self, call: ScriptCommand) -> bool:
        """Whether a command calls a function of the script's that trains in the foreground."""
        return any(f"function:{call.words[:1][0]}" in each.blocks and not each.background
                   for each in self.script.launches if call.words)  # fmt: skip

    def steps_behind(self, step: ScriptCommand) -> bool:
        """Whether a step on one node has others behind it that the script starts when it has ended."""
        others = (each for each in self.script.started if each.at > step.at and each.words and each.srun is not None)
        return any(each.srun_option("-w", "--nodelist", "-r", "--relative") is not None
                   and PurePosixPath(each.words[0]).name == PurePosixPath(step.words[0]).name
                   for each in others if step.words)  # fmt: skip

    def filled_here(self, command: ScriptCommand) -> str:
        """A folder of one node alone that a command fills, if steps of the job look for it; "" for none."""
        told = next(text for each, text in self.texts if each is command)
        steps = [each for each, _ in self.texts if each.srun is not None and each.at > command.at]
        for place in _places(told) if matches("fills", [told]) else ():
            near = [(each, text) for each, text in self.texts if any(_same(place, one) for one in _places(
                " ".join([text, *(self.script.commands[each.at].words if each in steps else [])])))]  # fmt: skip
            if matches("fills_elsewhere", [text for _, text in near]):
                continue
            if any(map(self._has_left, steps)) and any(
                each in steps or matches("looks_there", [text]) for each, text in near
            ):
                return place
        return ""

    def grown_file(self, command: ScriptCommand) -> str:
        """A file of hosts that a command adds to, and that no job empties before; "" for none."""
        told = next(text for each, text in self.texts if each is command)
        file = group("appends", told)
        emptied = (text for each, text in self.texts if each.at <= command.at and file in text)
        read = any(each.at > command.at and file in text for each, text in self.texts)
        return file if file and read and not matches("of_this_job", [file]) and not matches("empties", emptied) else ""

    def lost_folder(self, launch: ScriptCommand) -> str:
        """A folder of one node alone to which a launch saves, and from which nothing copies below; "" for none."""
        for flag, value in zip(launch.program, [*launch.program[1:], ""], strict=False):
            name, _, joined = flag.partition("=")
            for place in _places(joined or value) if matches("output_flag", [name]) else ():
                below = (text for each, text in self.texts if each.at > launch.at)
                if not any(_same(place, other) for text in below for other in _places(text)):
                    return "" if "trap " in self.script.text else place
        return ""

    def alone(self, command: ScriptCommand) -> bool:
        """Whether a command is in no block, and runs whatever became of the one before it."""
        at = next(at for at, (each, _) in enumerate(self.texts) if each is command)
        return not command.blocks and not (at and self.texts[at - 1][0].end in ("&&", "||"))

    def eats_list(self, command: ScriptCommand) -> bool:
        """Whether a command reads from the list that a loop around it reads line by line."""
        heads = [each for each in self.script.started if each.at < command.at and each.words[:1] == ("read",)]
        if not heads or heads[-1].blocks[-1:] != ("while",) or "while" not in command.blocks:
            return False
        inside = [word for each in self.script.commands[heads[-1].at + 1 : command.at] for word in each.words[:2]]
        own = (self.script.commands[command.at - 1].end, " ".join(heads[-1].words), command.text, *command.words)
        left = "while" in inside or inside.count("done") > inside.count("for")
        return not (left or command.document or matches("other_input", own))

    def devices_shown(self, launch: ScriptCommand) -> int | None:
        """The GPUs that a constant CUDA_VISIBLE_DEVICES shows to a launch, to a step the one set in it; or None."""
        value = ""
        for each in self.script.started[: self.script.started.index(launch) + 1]:
            for name, given, prefixed in each.assignments:
                reaches = each is launch if prefixed else launch.srun is None or each.shell == "step"
                if name == "CUDA_VISIBLE_DEVICES" and reaches:
                    value = given if prefixed or not each.blocks else ""
            value = "" if "CUDA_VISIBLE_DEVICES" in each.words[1:] else value
        reaches = launch.shell == "step" or launch.srun is None or "env" in launch.wrappers
        return len(value.split(",")) if reaches and matches("devices", [value]) else None

    def at_own_path(self, launch: ScriptCommand) -> bool:
        """Whether a launch looks for its program where $0 leads."""
        gone = [each for each, _ in self.texts if each.at < launch.at and each.words[:1] == ("cd",)][-1:]
        file = launch.program[0] if launch.program else "-"
        led = [" ".join(each.words) for each in gone if self.alone(each) and file[:1] not in "/$~-"]
        return matches("own_path", [file, *led]) and not matches("other_path", [file, *led])

    def launches_below(self, command: ScriptCommand) -> list[ScriptCommand]:
        return [each for each in self.script.launches if each.at > command.at]

    def side_by_side(self, launch: ScriptCommand) -> list[ScriptCommand]:
        """The other launches of a kind that the batch shell runs at the same time."""
        beside = (each for each in self.script.launches if each.background and each.srun is None)
        return [each for each in beside if each is not launch and each.kind == launch.kind]


_SYNTAX = re.compile(r"line (\d+): (.*)")
_SYNTAX_LIMIT_S = 10
_SHELL = re.compile(r"(?!#!)|#!\s*\S*/(?:env\s+)?(ba|da|k|z)?sh\b")


def check_script(text: str, file: str) -> list[Finding]:
    """The findings about an sbatch script, in the order of its lines; `file` is its name in them."""
    script = read_script(text)
    problems = (
        [(1, "crlf", {})] if "\r\n" in text else [*_held_of_all(script), *_syntax(script), *_secret_flags(script)]
    )
    # What a lost directive leaves behind is no fault of its own.
    left = [each for each in problems if rules()["rules"][each[1]].get("of_directives") and any(map(_loses, problems))]
    fails = has_errors([_finding(file, *each) for each in left])  # the job that is left without it
    found = dict.fromkeys(_finding(file, *each, fails=fails and _loses(each)) for each in problems if each not in left)
    return sorted(found, key=lambda each: int(each.where.rpartition(":")[2]))


def fate(finding: Finding) -> Message:
    """What becomes of a fault in the script that --convert prints."""
    stays = rules()["rules"][finding.code.removeprefix("script_")].get("stays")
    template = "{where}: still in this script: {told}" if stays else "{where}: gone in this script: {told}"
    return Message(template, where=finding.where, told=finding.message)


def _loses(problem: ScriptProblem) -> bool:
    """Whether a directive that changes the job is lost by a problem."""
    rule, words = rules()["rules"][problem[1]], problem[2]
    harmless = words.get("option") in rules()["harmless"] or matches("harmless_text", [words.get("text")])
    return bool(rule.get("loses_directives") and not harmless)


def _finding(file: str, line: int, code: str, words: dict[str, Any], *, fails: bool = False) -> Finding:
    rule = rules()["rules"][code]
    level = words.get("level") or rule.get("level", "error")
    return Finding(
        level="error" if fails and level == "warning" else level,
        code=f"script_{code}",
        message=Message(rule["message"], **words),
        fix=words.get("fix") or Message(rule.get("fix", ""), **words),
        where=f"{file}:{line}",
    )


def _held_of_all(script: JobScript) -> Iterator[ScriptProblem]:
    """The checks of rules.toml that hold, of every subject that they are about."""
    facts = StepFacts(script)
    texts = ["", *script.text.splitlines(), ""]
    lines = [
        {"line": at, "text": texts[at], "above": at < script.first, "before": texts[at - 1], "after": texts[at + 1]}
        for at in range(1, len(texts) - 1)
    ]
    subjects = {
        "directive": [facts.terms(each) for each in script.directives],
        "ignored": [facts.terms(each) for each in script.ignored],
        "line": [facts.terms(None, **each) for each in lines],
    }
    if _SHELL.match(script.text):
        commands = {id(each): facts.terms(each) for each in script.started}
        subjects |= {
            "shell_line": [
                each
                for each in subjects["line"]
                if not each["text"].lstrip().startswith("#") and each["line"] not in in_documents(script.commands)
            ],
            "script": [facts.terms(script)],
            "command": [*commands.values()],
            "launch": [commands[id(each)] for each in script.launches],
            "assignment": [
                facts.terms(None, name=name, value=value, prefixed=prefixed, command=each, line=each.line)
                for each in script.started
                for name, value, prefixed in each.assignments
            ],
        }
    for section, found in subjects.items():
        for row in rules()[section]:
            held = [each for each in (_problem(row, known) for known in found) if each]
            yield from held[:1] if row.get("once") else held


def _problem(row: Mapping[str, Any], known: SubjectNames) -> ScriptProblem | None:
    """The problem that a check finds, with the words for its texts."""
    if not evaluate(row["when"], known):
        return None
    texts = rules()["rules"][row["code"]]
    words = {found[0] for found in PLACEHOLDER.findall(texts["message"] + texts.get("fix", ""))}
    given = {name: evaluate(text, known) for name, text in row.get("values", {}).items()}
    filled = {name: shown(given[name] if name in given else known[name]) for name in words}
    line = evaluate(row.get("line", "line"), known)
    return (
        line,
        row["code"],
        filled | {name: row[name] for name in ("level",) if name in row} | {"fix": given.get("fix")},
    )


def _syntax(script: JobScript) -> Iterator[ScriptProblem]:
    """What bash cannot read, by its own word; it runs nothing of the script."""
    if not PATTERNS["bash"].match(script.text):
        return
    try:
        done = subprocess.run(
            ["bash", "-n"], input=script.text.encode("utf-8", "replace"), env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"},
            capture_output=True, timeout=_SYNTAX_LIMIT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return
    told = done.stderr.decode("utf-8", "replace")
    if document := PATTERNS["open_document"].search(told):
        yield int(document[1]), "here_document_open", {}
    found = _SYNTAX.search(told)
    if done.returncode and found:
        last = len(script.text.splitlines())
        opened = script.unclosed if script.unclosed and int(found[1]) >= last else None
        line = opened or min(int(found[1]), last)
        # A user has to fill it in: <path to the model>.
        open_place = any(map(PATTERNS["placeholder"].search, script.text.splitlines()[max(line - 3, 0) : line]))
        yield line, "shell_syntax", {"told": found[2], **({"level": "warning"} if open_place else {})}


def _secret_flags(script: JobScript) -> Iterator[ScriptProblem]:
    """Secrets among the words of commands."""
    for each in script.commands:
        for before, word in pairwise(("", *each.words)):
            flag, equals, value = word.partition("=")
            name = flag if equals else before
            told = value if equals else word
            if (is_secret_flag(name) and len(told) >= 8 and not told.startswith(("$", "-", "/"))) or (
                without_tokens(word) != word
                and not ASSIGNMENT.fullmatch(word)
                and not matches("file_name", [word])
                and not set(word) & set(" $")
            ):
                told_as = name if is_secret_flag(name) else text_of("script.token", command=each.words[0])
                yield each.line, "secret", {"name": told_as}
        if each.words[:2] == ("wandb", "login") and re.fullmatch(r"\w{30,}", each.words[-1]):
            yield each.line, "secret", {"name": text_of("script.wandb_key")}
