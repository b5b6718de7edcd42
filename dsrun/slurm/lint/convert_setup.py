"""The commands of a script beside its launch, as options of `dsrun render-slurm`, or refused."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dsrun.slurm.lint.convert_launch import refusal
from dsrun.slurm.lint.job import DECLARATIONS
from dsrun.slurm.lint.shell import ShellCommand, commands, live
from dsrun.slurm.lint.words import literal, redirects, references
from dsrun.system.display import SECRET_VARIABLE

_ASSIGNMENT = re.compile(r"(\w+)=(.*)", re.DOTALL)
# Commands that change nothing for the program.
_SILENT = frozenset(
    {"echo", "printf", "date", "hostname", "pwd", "true", ":", "nvidia-smi", "which", "free", "df", "lscpu", "uname"}
    | {"id", "whoami", "wait", "exit", "squeue", "scontrol", "nproc", "head", "tail", "cut", "tr", "wc", "grep", "awk"}
    | {"sed", "sort", "uniq", "shuf", "seq", "getent", "basename", "dirname", "expr", "cat", "ip", "realpath"}
)
_LOADS = re.compile(
    r"(?:module (?:load|add)|ml(?: load| add)?) "
    r"(?P<modules>(?!(?:list|purge|avail|use|swap|unload|spider|restore)\b)[^-].*)"
    r"|conda activate (?P<conda>[^\s-]\S*)|(?:module|ml) list"
)
# The rendered script does it where `module` is not defined.
_DEFINES_MODULE = re.compile(r"/etc/profile\.d/\w*(modules|lmod)\w*\.sh|/.*/init/(ba)?sh")
# Variables of the rendezvous, which the launchers set.
RENDEZVOUS = re.compile(r"MASTER_(ADDR|PORT)|WORLD_SIZE|(NODE_|LOCAL_)?RANK")
_SETUP_FILE = "put the line into a file, remove it here, and add --setup-file FILE to the command that is printed"
_MENDS = {
    "module": "purge or set up your modules before sbatch, and remove the line",
    "trap": "remove it: the rendered script passes signals on and requeues the job",
    "cd": "remove it; #SBATCH --chdir=DIR",
    "mkdir": "remove it, and make the folder before you submit",
}
# Of those, what does not fail, so that nothing depends on it.
_UNCONDITIONAL = frozenset({"echo", "printf", "date", "hostname", "pwd", "true", ":", "nvidia-smi", "free", "df"})
# Mostly exported already, so that a program sees them without another export.
_INHERITED = frozenset({"PATH", "HOME", "LD_LIBRARY_PATH", "PYTHONPATH"})
_ORDER = ("modules", "files that are sourced", "conda", "the virtual environment", "exports")


@dataclass
class Setup:
    """`args` are options of render-slurm; `assigned` holds the assignments, in order, that are none of them: the names,
    the command as written, and whether the program may see them; `known` are the names in `args`."""

    args: list[str] = field(default_factory=list)
    assigned: list[tuple[ShellCommand, frozenset[str], bool]] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    arrays: set[str] = field(default_factory=set)

    def settled(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Those of the script's variables that have one value all along, as do those that they are made of."""
        found = Counter(name for _, names, _ in self.assigned for name in names)
        again = {name for name, count in found.items() if count > 1 or name in self.known}
        return {
            name: value
            for name, value in variables.items()
            if name not in again and again.isdisjoint(re.findall(r"\w+", value))
        }


def read_setup(found: Sequence[ShellCommand], launch: int, name: str, *, moved: bool = False) -> Setup:
    """What the commands do; `launch` is the place of the launch, `moved` whether --chdir is given.

    Raises UsageError for what is not converted.
    """
    reader = _Reader(name, Setup(), any(each.words[:2] == ("conda", "activate") for each in found), moved)
    at, condition = 0, None
    while at < len(found):
        each = found[at]
        silent = at != launch and _does_nothing(each)
        if condition and not silent:
            raise reader.refuse(condition, f"{each.words[0]} depends on it: write them as two lines, or remove it")
        if each.end not in ("&&", "||", "|"):
            condition = None
        elif silent and (each.end != "&&" or each.words[0] not in _UNCONDITIONAL):
            condition = condition or each
        if at != launch:
            if each.end == "(" and len(each.words) == 1 and each.words[0].endswith("="):
                reader.setup.arrays.add(each.words[0].rstrip("+="))
                at += 1 + (at + 1 < len(found) and found[at + 1].end == ")")
                continue
            reader.read(each, before=at < launch)
        at += 1
    return reader.setup


@dataclass
class _Reader:
    name: str
    setup: Setup
    has_conda: bool
    moved: bool
    stage: int = 0

    def refuse(self, command: ShellCommand, fix: str | None = None) -> Exception:
        declares = command.words[0] in DECLARATIONS or _ASSIGNMENT.fullmatch(command.words[0])
        words = [word.partition("=")[0] if declares else live(word) for word in command.words[:4]]
        mend = fix or _MENDS.get(command.words[0], _SETUP_FILE)
        return refusal(self.name, command.line, f"{' '.join(words)} is not converted", mend)

    def read(self, command: ShellCommand, *, before: bool) -> None:
        if _does_nothing(command):
            return
        head, words = command.words[0], [literal(each) for each in command.raw]
        if command.end not in ("\n", ";", "&&") or not before:
            raise self.refuse(command, None if before else "remove it, and do it when the job has ended")
        if head in DECLARATIONS or _ASSIGNMENT.fullmatch(head):
            self._assign(command)
        elif self._is_settled(command):
            return
        elif option := self._environment(command, words):
            self._keep_order(command, *option)
        else:
            raise self.refuse(command)

    def _is_settled(self, command: ShellCommand) -> bool:
        """Whether the rendered script does it, or has it without."""
        head, *rest = command.words
        if head == "cd":
            return not self.moved and rest in (["$SLURM_SUBMIT_DIR"], ["${SLURM_SUBMIT_DIR}"])
        if head == "set":
            return all(re.fullmatch(r"[-+][euxo]+|pipefail", word) for word in rest)
        return command.words == ("eval", "$(conda shell.bash hook)") and self.has_conda

    def _environment(self, command: ShellCommand, words: list[str | None]) -> tuple[int, list[str]] | None:
        """What loads an environment: its place in the rendered script, and the options; none for other commands."""
        if command.words[0] in ("source", "."):
            return self._sourced(command, words[1:])
        found = _LOADS.fullmatch(" ".join(map(str, words)))
        if found is None or None in words:
            return None
        if found["modules"]:
            return 0, [each for word in found["modules"].split() for each in ("--module", word)]
        return (2, ["--conda", found["conda"]]) if found["conda"] else (self.stage, [])

    def _sourced(self, command: ShellCommand, words: list[str | None]) -> tuple[int, list[str]] | None:
        """As `_environment`, of the words behind `source`."""
        in_home = bool(words) and re.fullmatch(r"~/[\w./-]+", command.raw[1])
        path = str(Path(command.raw[1]).expanduser()) if in_home else words[0] if words else None
        if path and path.endswith("/bin/activate") and len(words) == 2:
            conda = path.removesuffix("/bin/activate")
            raise self.refuse(command, f"source {conda}/etc/profile.d/conda.sh, then conda activate {command.words[2]}")
        if path is None or len(words) > 1:
            return None
        if _DEFINES_MODULE.fullmatch(path) and self.stage == 0:
            return 0, []
        venv = path.endswith("/bin/activate")
        return (3, ["--venv", path.removesuffix("/bin/activate")]) if venv else (1, ["--setup-file", path])

    def _keep_order(self, command: ShellCommand, stage: int, args: list[str]) -> None:
        if stage < self.stage:
            order = ", ".join(_ORDER)
            raise self.refuse(command, f"move it up: the rendered script has {order} in this order")
        self.stage = stage
        self.setup.args += args

    def _assign(self, command: ShellCommand) -> None:
        raw = command.raw[1:] if command.words[0] in DECLARATIONS else command.raw
        exports = command.words[0] == "export" or command.words[:2] == ("declare", "-x")
        raw = raw[1:] if command.words[:2] == ("declare", "-x") else raw
        pairs = [found for each in raw if (found := _ASSIGNMENT.fullmatch(each))]
        names = {found[1] for found in pairs} | {each for each in raw if re.fullmatch(r"[A-Za-z_]\w*", each)}
        if len(names) < len(raw) or "IFS" in names or (command.words[0] in DECLARATIONS and not exports):
            raise self.refuse(command, "write NAME=VALUE or export NAME=VALUE")
        if any(not _is_pure(found[2]) for found in pairs):
            raise self.refuse(command)
        for found in pairs:
            if SECRET_VARIABLE.search(found[1]) and exports and literal(found[2]):
                fix = f"export it where you call sbatch, remove it here, and add --env {found[1]}"
                raise self.refuse(command, fix)
        if exports and all(RENDEZVOUS.fullmatch(each) for each in names):
            self.setup.assigned.append((command, frozenset(names), False))
            return
        values = {found[1]: literal(found[2]) for found in pairs}
        if exports and len(pairs) == len(raw) and None not in values.values() and not names & self._assigned():
            self.setup.known |= names
            self._keep_order(command, 4, [word for pair in pairs for word in ("--env", f"{pair[1]}={values[pair[1]]}")])
            return
        self.setup.assigned.append((command, frozenset(names), exports or not names.isdisjoint(_INHERITED)))

    def _assigned(self) -> set[str]:
        return {name for _, names, _ in self.setup.assigned for name in names}


def _does_nothing(command: ShellCommand) -> bool:
    """Whether it prints or waits, and starts nothing else."""
    head = command.words[0]
    if any(map(redirects, command.raw)) and not _to_terminal(command.words):
        return False
    if head == "ulimit":
        return command.words[1:2] == ("-n",)
    shown = head in _SILENT or (head == "srun" and command.words[-1] in ("hostname", "nvidia-smi", "--ip-address"))
    edits = head in ("sed", "sort") and any(word.startswith(("-i", "-o", "--in-place")) for word in command.words)
    changes = head == "scontrol" and command.words[1:2] != ("show",)
    return shown and not edits and not changes and command.end != "&" and all(map(_is_pure, command.raw))


def _to_terminal(words: Sequence[str]) -> bool:
    text = " ".join(words)
    return not re.search(r"[<>]", re.sub(r"\d?>\s*/dev/null|\d?>&\d|&>\s*/dev/null", "", text))


def _is_pure(raw: str) -> bool:
    """Whether the commands whose output is in a word change nothing."""
    if not any(not usable for _, usable in references(raw)) or not re.search(r"\$\((?!\()|`", raw):
        return True
    inner = [found[1] or found[2] for found in re.finditer(r"\$\((?!\()(.*)\)|`([^`]*)`", raw, re.DOTALL)]
    return all(all(map(_does_nothing, commands(text))) for text in inner)


def needed_assignments(
    setup: Setup, words: Sequence[str], may_read: Callable[[str], bool]
) -> Iterator[tuple[ShellCommand, str | None]]:
    """The assignments, in order, without which the program's words or exports would not be the same; with each the
    first variable in it that the nodes do not have, None for none."""
    wanted = {name for word in words for name, _ in references(word)}
    chosen: list[ShellCommand] = []
    for command, names, exports in reversed(setup.assigned):
        if exports or names & wanted:
            chosen.insert(0, command)
            wanted |= {word for word in command.raw if word in names}
            wanted |= {name for word in command.raw for name, _ in references(word)}
    own = setup.known | {name for _, names, _ in setup.assigned for name in names}
    for command in chosen:
        refs = [ref for word in command.raw for ref in references(word)]
        yield (
            command,
            next((name for name, usable in refs if not usable or (name not in own and not may_read(name))), None),
        )
