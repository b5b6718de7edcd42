"""The commands of a script beside its launch, as options of `dsrun render-slurm`, or refused."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dsrun.slurm.lint.convert_launch import PATTERNS, NotConverted, literal, redirects, references
from dsrun.slurm.lint.launch import rules
from dsrun.system.shell import ASSIGNMENT, DECLARATIONS, ShellCommand, commands, live
from dsrun.system.terminal.secrets import is_secret_name

# Mostly exported already, so that a program sees them without another export.
_INHERITED = frozenset({"PATH", "HOME", "LD_LIBRARY_PATH", "PYTHONPATH"})
_ORDER = ("modules", "files that are sourced", "conda", "the virtual environment", "exports")


@dataclass
class ScriptSetup:
    """`args` are options of render-slurm; `assigned` holds the assignments, in order, that are none of them: the names,
    the command as written, and whether the program may see them; `known` are the names in `args`. `moved`: --chdir is
    given. `stage` is the place in _ORDER that has been reached."""

    has_conda: bool
    moved: bool
    args: list[str] = field(default_factory=list)
    assigned: list[tuple[ShellCommand, frozenset[str], bool]] = field(default_factory=list)
    known: frozenset[str] = frozenset()
    arrays: set[str] = field(default_factory=set)
    stage: int = 0

    @property
    def names(self) -> Counter[str]:
        """How often a name is in `assigned`."""
        return Counter(name for _, names, _ in self.assigned for name in names)

    def settled(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Those of the script's variables that have one value all along, as do those that they are made of."""
        again = {name for name, count in self.names.items() if count > 1 or name in self.known}
        return {
            name: value
            for name, value in variables.items()
            if name not in again and again.isdisjoint(re.findall(r"\w+", value))
        }

    def read(self, command: ShellCommand, *, before: bool) -> None:
        """What a command does; `before` the launch or behind it."""
        if _does_nothing(command):
            return
        head, *rest = command.words
        if command.end not in ("\n", ";", "&&") or not before:
            raise _refusal(command, None if before else "remove it, and do it when the job has ended")
        if _declares(command):
            self._assign(command)
        elif not self._is_settled(head, rest):
            self._add(command, *(self._sourced if head in ("source", ".") else self._loaded)(command))

    def _is_settled(self, head: str, rest: list[str]) -> bool:
        """Whether the rendered script does it, or has it without."""
        if head == "cd":
            return not self.moved and rest in (["$SLURM_SUBMIT_DIR"], ["${SLURM_SUBMIT_DIR}"])
        if head == "set":
            return all(re.fullmatch(r"[-+][euxo]+|pipefail", word) for word in rest)
        return self.has_conda and (head, rest) == ("eval", ["$(conda shell.bash hook)"])

    def _loaded(self, command: ShellCommand) -> tuple[int, list[str]]:
        """What loads modules or conda: its place in the rendered script, and the options."""
        words = [literal(each) for each in command.raw]
        found = PATTERNS["loads"].fullmatch(" ".join(map(str, words)))
        if found is None or None in words:
            raise _refusal(command)
        if found["modules"]:
            return 0, [each for word in found["modules"].split() for each in ("--module", word)]
        return (2, ["--conda", found["conda"]]) if found["conda"] else (self.stage, [])

    def _sourced(self, command: ShellCommand) -> tuple[int, list[str]]:
        """As `_loaded`, of a file that is sourced."""
        name = command.raw[1] if len(command.raw) > 1 else ""
        path = str(Path(name).expanduser()) if re.fullmatch(r"~/[\w./-]+", name) else literal(name)
        if path and path.endswith("/bin/activate") and len(command.words) == 3:
            conda = path.removesuffix("/bin/activate")
            raise _refusal(command, f"source {conda}/etc/profile.d/conda.sh, then conda activate {command.words[2]}")
        if path is None or len(command.words) != 2:
            raise _refusal(command)
        if PATTERNS["defines_module"].fullmatch(path) and self.stage == 0:
            return 0, []
        venv = path.endswith("/bin/activate")
        return (3, ["--venv", path.removesuffix("/bin/activate")]) if venv else (1, ["--setup-file", path])

    def _add(self, command: ShellCommand, stage: int, args: list[str]) -> None:
        if stage < self.stage:
            raise _refusal(command, f"move it up: the rendered script has {', '.join(_ORDER)} in this order")
        self.stage = stage
        self.args += args

    def _assign(self, command: ShellCommand) -> None:
        declares, with_x = command.words[0] in DECLARATIONS, command.words[:2] == ("declare", "-x")
        exports = command.words[0] == "export" or with_x
        raw = command.raw[declares + with_x :]
        pairs = {found[1]: found[2] for each in raw if (found := ASSIGNMENT.fullmatch(each))}
        names = frozenset(pairs).union(each for each in raw if re.fullmatch(r"[A-Za-z_]\w*", each))
        if len(names) < len(raw) or "IFS" in names or (declares and not exports):
            raise _refusal(command, "write NAME=VALUE or export NAME=VALUE")
        if not all(map(_is_pure, pairs.values())):
            raise _refusal(command)
        values = {name: text for name, value in pairs.items() if (text := literal(value)) is not None}
        if exports and (
            secret := next((name for name in pairs if is_secret_name(name.upper()) and values.get(name)), "")
        ):
            raise _refusal(command, f"export it where you call sbatch, remove it here, and add --env {secret}")
        rendezvous = exports and all(map(PATTERNS["rendezvous"].fullmatch, names))
        if exports and not rendezvous and len(values) == len(raw) and names.isdisjoint(self.names):
            self.known |= names
            self._add(command, 4, [word for name, text in values.items() for word in ("--env", f"{name}={text}")])
        else:
            visible = not rendezvous and (exports or not names.isdisjoint(_INHERITED))
            self.assigned.append((command, names, visible))

    def may_read(self, name: str, on_node: Callable[[str], bool]) -> bool:
        """Whether a variable has a value for the program: the script's own, or one that `on_node` is true of."""
        return name in self.known or name in self.names or on_node(name)

    def needed(self, words: Sequence[str], on_node: Callable[[str], bool]) -> Iterator[tuple[ShellCommand, str | None]]:
        """The assignments, in order, without which the program's words or exports would not be the same; with each the
        first variable in it that the nodes do not have, None for none."""
        wanted = {name for word in words for name, _ in references(word)}
        chosen: list[ShellCommand] = []
        for command, names, exports in reversed(self.assigned):
            if exports or names & wanted:
                chosen.insert(0, command)
                wanted |= {word for word in command.raw if word in names}
                wanted |= {name for word in command.raw for name, _ in references(word)}
        for command in chosen:
            refs = (ref for word in command.raw for ref in references(word))
            unknown = (name for name, usable in refs if not usable or not self.may_read(name, on_node))
            yield command, next(unknown, None)


def read_setup(found: Sequence[ShellCommand], launch: int, *, moved: bool = False) -> ScriptSetup:
    """What the commands do; `launch` is the place of the launch, `moved` whether --chdir is given.

    Raises NotConverted for what is not converted."""
    setup = ScriptSetup(any(each.words[:2] == ("conda", "activate") for each in found), moved)
    condition = None
    rest = iter(enumerate(found))
    for at, each in rest:
        silent = at != launch and _does_nothing(each)
        if condition and not silent:
            raise _refusal(condition, f"{each.words[0]} depends on it: write them as two lines, or remove it")
        if each.end not in ("&&", "||", "|"):
            condition = None
        elif silent and (each.end != "&&" or each.words[0] not in rules()["convert"]["never_fail"]):
            condition = condition or each
        if each.end == "(" and len(each.words) == 1 and each.words[0].endswith("=") and at != launch:
            setup.arrays.add(each.words[0].rstrip("+="))
            if at + 1 < len(found) and found[at + 1].end == ")":
                next(rest)
        elif at != launch:
            setup.read(each, before=at < launch)
    return setup


def _declares(command: ShellCommand) -> bool:
    return command.words[0] in DECLARATIONS or bool(ASSIGNMENT.fullmatch(command.words[0]))


def _refusal(command: ShellCommand, fix: str | None = None) -> NotConverted:
    declares = _declares(command)
    words = [word.partition("=")[0] if declares else live(word) for word in command.words[:4]]
    mends = rules()["convert"]["mends"]
    mend = fix or mends.get(command.words[0], mends["other"])
    return NotConverted(command.line, "command", words=" ".join(words), mend=mend)


def _does_nothing(command: ShellCommand) -> bool:
    """Whether it prints or waits, and starts nothing else."""
    head = command.words[0]
    if any(map(redirects, command.raw)) and not _to_terminal(command.words):
        return False
    if head == "ulimit":
        return command.words[1:2] == ("-n",)
    in_step = head == "srun" and command.words[-1] in ("hostname", "nvidia-smi", "--ip-address")
    shown = in_step or head in rules()["convert"]["silent"]
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
