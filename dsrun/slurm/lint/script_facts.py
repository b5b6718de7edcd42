"""What the conditions in rules.toml ask about an sbatch script."""

import difflib
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from dsrun.datafiles import SubjectNames, evaluate, patterns_beside
from dsrun.findings.finding import text_of
from dsrun.messages import suggestion
from dsrun.slurm.lint.launch import LATE_DOLLAR, ScriptCommand, flag_value, rules
from dsrun.slurm.lint.read_script import JobScript, gpus_in
from dsrun.slurm.render.notation import time_limit
from dsrun.system.shell import LITERAL_DOLLAR
from dsrun.system.terminal.display import counted
from dsrun.system.terminal.secrets import is_secret_name

PATTERNS = patterns_beside(__file__, "rules.toml")
_VALUES = patterns_beside(__file__, "rules.toml", table="values", flags=re.IGNORECASE)


def shown(value: Any) -> Any:
    """A value for a message, as the script has it."""
    return value.replace(LATE_DOLLAR, "$").replace(LITERAL_DOLLAR, "$") if isinstance(value, str) else value


def matches(pattern: str, words: Iterable[str | None]) -> bool:
    """Whether a pattern of rules.toml is in one of the words."""
    return any(PATTERNS[pattern].search(word) for word in words if word is not None)


def late(text: str | None) -> bool:
    """Whether a shell on the nodes expands something in a text."""
    return LATE_DOLLAR in (text or "")


def group(pattern: str, text: str, number: int = 1) -> str:
    """A part of a text that a pattern finds; "" where it finds none."""
    found = PATTERNS[pattern].search(text)
    return (found[number] or "") if found else ""


def folder_of(path: str | None) -> str:
    return str(PurePosixPath(path or ".").parent)


def close(name: str, known: Iterable[str], ratio: float = 0.8) -> str:
    """The known name that is most like one, whatever the case of its letters; "" for none."""
    spelt = {each.casefold(): each for each in known}
    found = difflib.get_close_matches(name.casefold(), list(spelt), 1, ratio)
    return next((spelt[each] for each in found if spelt[each] != name), "")


def value_of(words: Sequence[str], *flags: str) -> str | None:
    """The value behind the first of these flags, with hyphens or underscores."""
    return flag_value(words, flags)


def all_devices(count: int) -> str:
    """The numbers of all GPUs of a node, as CUDA_VISIBLE_DEVICES has them."""
    return ",".join(map(str, range(count)))


def _highest(found: re.Match[str]) -> str:
    digits = found["last"] or found["tail"]
    below = min(int(found["modulus"] or 32768), 32768 if found["random"] else 10**9)
    return "9" * int(digits) if digits else found["high"] or str(below - 1)


_FUNCTIONS = (
    any, int, iter, len, next, repr, sum, counted, is_secret_name, suggestion, text_of, time_limit, shown, matches,
    late, group, gpus_in, folder_of, close, value_of, all_devices, map,
)  # fmt: skip


class ScriptFacts:
    """Functions and names for the conditions about one script."""

    def __init__(self, script: JobScript) -> None:
        self.script = script
        self.texts = [(each, shown(" ".join((*each.environment, each.text)))) for each in script.started]
        tables = {
            name: rules()[name] for name in ("options", "foreign", "launchers", "set_by", "plugins", "known_variables")
        }
        own = {name: getattr(self, name) for name in dir(self) if name[0] != "_" and name != "terms"}
        self._names = {each.__name__: each for each in _FUNCTIONS} | {"values": _VALUES} | tables | own

    def terms(self, subject: Any, **attributes: Any) -> SubjectNames:
        """What an expression about a subject may name."""
        return SubjectNames(subject, rules()["terms"], this=subject, **self._names, **attributes)

    def number(self, text: str | None) -> int | None:
        """The whole number that a text stands for in this job, as `$SLURM_NNODES` and `$((2 * 4))` do."""
        if not text:
            return None
        known = SubjectNames(self.script, {})
        for name, of_script in rules()["slurm_numbers"].items():
            if name in text and (value := evaluate(of_script, known)) is not None:
                text = re.sub(rf"[${LATE_DOLLAR}]\{{?{name}\b(:-\d+)?\}}?|\b{name}\b", str(value), text)
        text = re.sub(rf"^[${LATE_DOLLAR}]\(\((.*)\)\)\Z", r"\1", text).replace("$((", "((").strip()
        if not PATTERNS["arithmetic"].fullmatch(text):
            return None
        try:
            return int(evaluate(text.replace("/", "//"), {}))
        except (SyntaxError, ZeroDivisionError, TypeError, ValueError):
            return None

    def port_range(self, text: str) -> tuple[int, int] | None:
        """The lowest and the highest number that a text with $RANDOM or the like in it can stand for."""
        text = PATTERNS["computed"].sub(r"\1", shown(text))
        bounds = [
            self.number(PATTERNS["bounded"].sub(bound, text)) for bound in (lambda one: one["low"] or "0", _highest)
        ]
        found = sorted(each for each in bounds if each is not None)
        return (found[0], found[1]) if len(found) > 1 and self.number(text) is None else None

    def taken_for_all(self, text: str, line: int) -> str:
        """An array of which a line takes the first element where it means all; "" for none."""
        if not (found := PATTERNS["first_element"].search(text)):
            return ""
        name, lines = found["name"], self.script.text.split("\n")
        above, below = "\n".join(lines[: line - 1]), "\n".join(lines[line:])
        sets = re.findall(rf"(?m)^\s*(?:\w+ )*{name}=(.*)|\b(?:mapfile|readarray|read -\w*a)\b(.*\b{name}\b)", above)
        is_array = sets and (sets[-1][1] or re.match(r"\((?!\s*[\"'])", sets[-1][0]))
        return name if is_array and (not found["copy"] or f"{found['copy']}[" in below.replace("[0]", "")) else ""

    def lines(self, pattern: str, below: int = 0, above: int = 1_000_000) -> list[int]:
        """The lines, between two, of the commands that match a pattern."""
        found = PATTERNS[pattern]
        return sorted(each.line for each, text in self.texts if below < each.line < above and found.search(text))

    def neighbour(self, command: ScriptCommand, step: int) -> str:
        """The text of the command behind (1) or before (-1) one."""
        at = step + next(at for at, (each, _) in enumerate(self.texts) if each is command)
        return self.texts[at][1] if 0 <= at < len(self.texts) else ""

    @cached_property
    def assigned(self) -> dict[str, list[int]]:
        """The variables that some shell of the job sets, with the lines."""
        found: dict[str, list[int]] = {}
        for each in self.script.started:
            for name, _, _ in each.assignments:
                found.setdefault(name, []).append(each.line)
        return found

    def set_below(self, name: str, line: int) -> int:
        """The first line that sets a variable, if it is below a line; else 0."""
        first = min(self.assigned.get(name, [0]))
        return first if first > line else 0

    def late_part(self, names: Iterable[str], line: int) -> str:
        """The first of the names that gets its value below a line; "" for none."""
        own = (each for each in names if not PATTERNS["of_login"].search(each))
        return next((each for each in own if self.set_below(each, line)), "")

    @property
    def steps(self) -> bool:
        """Whether srun starts more than a command that prints."""
        silent = rules()["convert"]["silent"]
        return any(each.srun is not None and each.words and each.words[0] not in silent for each in self.script.started)

    def is_referenced(self, name: str) -> bool:
        """Whether a command other than one that prints uses a variable."""
        used = re.compile(rf"\$\{{?{name}\b")
        printing = ("echo", "printf")
        texts = (
            "\n".join((*each.raw, each.document or ""))
            for each in self.script.commands
            if each.words[0] not in printing
        )
        return any(map(used.search, texts))

    def unset_of_slurm(self, command: ScriptCommand) -> str:
        """A variable in a command that sbatch sets only with an option which the script does not give; "" for none."""
        text = " ".join((*command.words, *command.environment))
        text = PATTERNS["arithmetic_text"].sub(lambda each: PATTERNS["bare_slurm"].sub(each[0][0], each[0]), text)
        for found in PATTERNS["slurm_reference"].finditer(text):
            name, in_step = found[2], found[1] == LATE_DOLLAR
            slip = name not in (*rules()["of_slurm"], *self.assigned) and close(name, rules()["of_slurm"], 0.85)
            options = rules()["set_by"].get(name, ["?"] if slip or name.startswith("SLURM_STEP") else [])
            in_step = in_step and (name.startswith("SLURM_STEP") or name in rules()["set_in_steps"])
            tested = re.search(rf"(\[\[?|test)\s[^\]\n]*\b{name}\b|(?m:^\s*(export )?){name}=", self.script.text)
            if options and not in_step and not tested and not any(map(self.script.get, options)):
                return str(name)
        return ""

    def without_value(self, launch: ScriptCommand) -> str:
        """A variable in a launcher's options that has no value there; "" for none."""
        own = " ".join(launch.own)
        found = (name for name in launch.unset if re.search(rf"\{{?\b{name}\b", own))
        found = (name for name in found if not re.search(rf"\b{name} =", self.script.text))
        return next((name for name in found if not PATTERNS["of_login"].fullmatch(name)), "")

    def misspelt(self, launch: ScriptCommand) -> str:
        """A variable in a launch that has no value, and all but the name of one that has; "" for none."""
        found = (name for name in launch.unset if name not in self.assigned and len(name) > 3)
        return next((name for name in found if close(name, (*self.assigned, *self.script.arrays), 0.88)), "")

    def misnamed(self, launch: ScriptCommand) -> str:
        """A variable in a launch without a value, where nothing uses another whose name ends with its; "" for none."""
        unused = [name for name in self.assigned if not self.is_referenced(name)]
        found = (name for name in launch.unseen if name not in self.assigned and not PATTERNS["of_login"].search(name))
        return next((name for name in found if any(each.endswith(f"_{name}") for each in unused)), "")

    def misspelt_variable(self, name: str) -> str:
        """The variable that programs know and whose name is all but this; "" for none."""
        return close(name, rules()["known_variables"], 0.92) if len(name) > 6 and name.isupper() else ""

    def bare_name(self, command: ScriptCommand) -> str:
        """A word that is the name, without $, of a variable with a path in it; "" for none."""
        paths = {name for each in self.script.started for name, value in each.assigns
                 if "/" in value and PurePosixPath(value).name != name}  # fmt: skip
        return next((word for word in command.words[1:] if word in paths), "")

    def only_sets_up(self, shell: ScriptCommand) -> bool:
        """Whether a shell that a command starts does nothing but change itself."""
        own = (each for each in self.script.started if each.at == shell.at and each is not shell)
        inner = [shown(" ".join((*each.environment, *each.words))) for each in own]
        return matches("sets_environment", inner) and all(map(PATTERNS["sets_up"].search, inner))

    def _has_left(self, command: ScriptCommand) -> bool:
        """Whether a command trains, or may, as a function of the script's that does."""
        trains = {name for each in self.script.launches for name in each.blocks}
        text = " ".join(("srun", *command.words) if command.srun is not None else command.words)
        return bool(command.kind or f"function:{command.words[0]}" in trains or PATTERNS["has_left"].search(text))

    def in_background_above(self, line: int) -> bool:
        """Whether something that trains is in the background above a line."""
        return any(each.background and each.words and self._has_left(each) for each in self.script.started
                   if each.line < line)  # fmt: skip

    @property
    def left_behind(self) -> int:
        """The line of the last that trains, if it is in the background and nothing waits for it; else 0."""
        outside = (each for each in self.script.started if each.words and not matches("function", each.blocks))
        last = next((each for each in reversed([*outside]) if self._has_left(each)), None)
        if last is None or not last.background or self.lines("waits_long", last.line):
            return 0
        waiting = {name for each in self.script.started if each.words[:1] == ("wait",) for name in each.blocks}
        called = (each for each in self.script.started if each.line > last.line and each.words)
        return 0 if any(f"function:{each.words[0]}" in waiting for each in called) else last.line

    def place(self, command: ScriptCommand, flag: str) -> int:
        """The line where a command has a flag, also one that it takes from a variable; else that of the command."""
        written = {flag, flag.replace("_", "-"), flag.replace("-", "_").replace("__", "--", 1)}
        for each in reversed(self.script.commands[: command.at + 1]):
            texts = [*zip(each.lines, each.raw, strict=True), (each.lines[-1] + 1, each.document or "")]
            for line, text in texts:
                for offset, part in enumerate(text.split("\n")):
                    if any(one in part for one in written):
                        return line + offset
        return command.line

    def unknown_option(self, launch: ScriptCommand) -> str:
        """An option that the launcher does not take; "" for none."""
        names = [each.replace("_", "-") for each in launch.known_options]
        options = (word.partition("=")[0] for word in launch.own if word.startswith("--"))
        return next(
            (each for each in options if not any(name.startswith(each.replace("_", "-")) for name in names)), ""
        )

    def signal_trap(self) -> ScriptCommand | None:
        """The trap for the signal of --signal; without one, that for a signal which only a user asks for."""
        signal = self.script.get("signal")
        name = re.sub(r"^[RB]+:", "", signal.value or "").partition("@")[0].removeprefix("SIG") if signal else ""
        same = {name, *rules()["signal_numbers"].get(name, [])} if signal else {"USR1", "USR2"}
        traps = (each for each in self.script.started if each.words[:1] == ("trap",))
        return next((each for each in traps if same & {word.removeprefix("SIG") for word in each.words[2:]}), None)

    def made_below(self, folder: str) -> int:
        """The line that makes a folder; 0 for none."""
        makers = (each for each in self.script.commands if each.words[0] == "mkdir")
        return next(
            (each.line for each in makers if folder in (str(PurePosixPath(word)) for word in each.words[1:])), 0
        )

    def handler(self, trap: ScriptCommand) -> str:
        """The text that a trap runs, with that of the function in it."""
        text = shown(trap.words[1])
        return " ; ".join((text, *(told for each, told in self.texts if f"function:{text}" in each.blocks)))
