"""Which shell of a job expands what: the commands of a script, each with the values that its variables have there.

A value is known where it was assigned before, in no loop, condition or function that may not have run."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from dsrun.slurm.lint.launch import LATE_DOLLAR, PYTHON, ScriptCommand, launcher_kind, rules
from dsrun.slurm.lint.variables import PATTERNS, Variables, passed_on
from dsrun.system.shell import DECLARATIONS, EARLIER_DOLLAR, ShellCommand, commands

_CLOSED_BY = {"if": "fi", "case": "esac", "{": "}", **dict.fromkeys(("for", "while", "until", "select"), "done")}
_CLOSING = frozenset(_CLOSED_BY.values())
_STRIPPED = frozenset({"then", "do", "else", "elif", "!", "time", "exec", "nohup", "command", "builtin"})
_READING = frozenset({"read", "mapfile", "readarray", "getopts", "unset", "let"})
_SHELLS = frozenset({"bash", "sh"})
# Stands for a line that goes on in the next one.
_JOINED = "\ue003"


@dataclass
class _Block:
    kind: str
    line: int
    names: set[str] = field(default_factory=set)


@dataclass
class ShellReader:
    """Reads the commands of one shell; `outer` has what those of another around it share, `depth` counts these."""

    variables: Variables
    outer: ScriptCommand = field(default_factory=lambda: ScriptCommand(line=1, kind=None, words=()))
    depth: int = 0
    blocks: list[_Block] = field(default_factory=list)

    def read(self, found: Sequence[ShellCommand]) -> Iterator[ScriptCommand]:
        skip = -1
        for at, command in enumerate(found):
            before = found[at - 1] if at else None
            words, raw = self._behind_keywords(found, at)
            if not words or at == skip or (command.end == ")" and self.blocks and self.blocks[-1].kind == "case"):
                continue
            conditional = before is not None and before.end in ("&&", "||")
            background = self.outer.background or _in_background(found, at)
            place = self.outer.at if self.depth else at
            self.outer = replace(self.outer, at=place, last=at == len(found) - 1)
            if command.end == "(" and words[-1].endswith("=") and found[at + 1 : at + 2] and found[at + 1].end == ")":
                self._array(words[-1], found[at + 1], conditional)
                skip = at + 1
            elif command.end == "(" and len(words) == 1:
                continue  # the name of a function
            else:
                yield from self._command(command, words, raw, conditional=conditional, background=background)

    def _behind_keywords(self, found: Sequence[ShellCommand], at: int) -> tuple[list[str], list[str]]:
        """The words of a command without the keywords before it, which begin and end blocks."""
        words, raw = list(found[at].words), list(found[at].raw)
        while words:
            word = words[0]
            if word in _CLOSING and self.blocks:
                for name in self.blocks.pop().names:
                    self._set(name, None)
                return [], []
            if word == "function":
                return [], []
            if word in _CLOSED_BY:
                named = word == "{" and at > 0 and (found[at - 1].end == "(" or found[at - 1].words[0] == "function")
                function = f"function:{found[at - 1].words[-1]}"
                self.blocks.append(_Block(function if named else word, found[at].line))
                if word in ("for", "while", "until"):
                    for name in {*_assigned_in_loop(found, at), *(words[1:2] if word == "for" else ())}:
                        self._set(name, None)
                if word in ("for", "case", "select"):
                    return [], []
            elif not _is_stripped(words):
                break
            del words[0], raw[0]
        return words, raw

    def _set(self, name: str, value: str | None, *, exported: bool = False, conditional: bool = False) -> None:
        for block in self.blocks:
            block.names.add(name)
        self.variables.assign(name, None if conditional else value, exported=exported)

    def _array(self, word: str, elements: ShellCommand, conditional: bool) -> None:
        name, known = word.rstrip("+="), self.variables
        values = (*known.arrays.get(name, ()),) if word.endswith("+=") else ()
        values += tuple(known.spread(elements.words, elements.raw))
        self._set(name, None)
        if not conditional and not self.blocks:
            known.arrays[name] = values

    def _command(
        self, command: ShellCommand, words: list[str], raw: list[str], *, conditional: bool, background: bool
    ) -> Iterator[ScriptCommand]:
        known = self.variables
        base = replace(
            self.outer, line=command.line, background=background, end=command.end,
            blocks=(*self.outer.blocks, *(each.kind for each in self.blocks)), document=command.document or "",
        )  # fmt: skip
        for found in (each for word in words for each in PATTERNS["defaulted"].finditer(word)):
            self._set(found[1], None)
        declares = words[0] in DECLARATIONS
        pairs = [PATTERNS["assignment"].fullmatch(word) for word in words[declares:]]
        exports = words[0] == "export" or words[:2] == ["declare", "-x"]
        if declares or all(pairs):
            assigns = [(each[1], (known.values.get(each[1], "") if each[2] else "") + known.expand(each[3]))
                       for each in pairs if each]  # fmt: skip
            for name, value in assigns:
                self._set(name, value, exported=exports, conditional=conditional)
            known.exported.update(word for word in words[1:] if exports and word.isidentifier())
            yield self._filled(replace(base, words=tuple(words), assigns=tuple(assigns), exports=exports))
            return
        if words[0] in _READING:
            for word in words[1:]:
                if name := PATTERNS["name"].match(word):
                    self._set(name[0], None)
        elif words[0] in ("source", "."):
            known.sourced |= not PATTERNS["environment_file"].search(" ".join(words[1:]))
        elif words[:2] in (["set", "-a"], ["set", "-o"]) and ("-a" in words or "allexport" in words):
            known.all_exported = True
        if command.document and (target := PATTERNS["written_to"].search(" ".join(command.words))):
            known.documents[PurePosixPath(known.expand(target[1])).name] = (command.document, command.line + 1)
        yield from self._started(replace(base, words=()), command, list(known.spread(words, raw)))

    def _started(self, base: ScriptCommand, command: ShellCommand, words: list[str]) -> Iterator[ScriptCommand]:
        """The command, or those of the shell that it starts."""
        environment, wrappers, srun, words = _unwrapped(words, base.srun)
        shown = replace(
            base, words=tuple(words), environment=environment, wrappers=(*base.wrappers, *wrappers), srun=srun
        )
        name = PurePosixPath(words[0]).name if words else ""
        inner: tuple[str, int] | None = None
        own_shell, arguments = False, words[1:]
        if name in _SHELLS and (
            option := next(
                (at for at, word in enumerate(words[1:3], 1) if PATTERNS["text_option"].fullmatch(word)), None
            )
        ):
            if len(words) > option + 1:
                inner, arguments = self._text_of_shell(command, words[option + 1]), words[option + 3 :]
        elif name == "eval":
            inner, own_shell = (" ".join(words[1:]), command.line), True
        elif name in _SHELLS and command.document:
            inner = (self.variables.expand(command.document), command.line + 1)
        else:
            by_shell = name in _SHELLS and len(words) > 1
            file = PurePosixPath(words[1] if by_shell else words[0] if words else "").name
            inner, arguments = self.variables.documents.get(file), words[1 + by_shell :]
        if inner is None or self.depth > 3:
            yield self._filled(replace(shown, kind=launcher_kind(words)))
            return
        known = self.variables if own_shell else self.variables.inherited()
        if not own_shell:
            known.arrays["@"] = tuple(map(passed_on, arguments))
            known.values |= {str(at): passed_on(word) for at, word in enumerate(arguments, 1)}
        for variable in environment:
            known.assign(variable.partition("=")[0], variable.partition("=")[2], exported=True)
        filled = self._filled(shown)
        yield replace(filled, words=(name, "-c"))
        shell = "step" if srun is not None else base.shell
        outer = replace(shown, shell=shell, unset=filled.unset, unseen=filled.unseen)
        text = passed_on(inner[0]).replace(_JOINED, "\\\n")
        yield from ShellReader(known, outer, self.depth + 1).read(commands(text, inner[1]))

    def _text_of_shell(self, command: ShellCommand, known: str) -> tuple[str, int]:
        """The text of bash -c, and the line where it begins; lines that a backslash joins in it stay apart."""
        options = (at for at, word in enumerate(command.words) if PATTERNS["text_option"].fullmatch(word))
        at = next(options, len(command.words)) + 1
        line, raw = next(iter(command.lines[at : at + 1]), command.line), "".join(command.raw[at : at + 1])
        if not raw.startswith('"') or "\\\n" not in raw:
            return known, line
        return self.variables.expand(commands(raw.replace("\\\n", _JOINED))[0].words[0]), line

    def _filled(self, command: ScriptCommand) -> ScriptCommand:
        """With marks that tell which shell expands what is not known, and with what has no value."""
        texts = [*command.words, *(value for _, value in command.assigns)]
        names = {each[1] or each[2] for text in texts for each in PATTERNS["reference"].finditer(text)}
        known = self.variables
        in_function = any(each.startswith("function") for each in command.blocks)
        unseen = set() if in_function else names - known.seen - known.private
        unset = set() if known.sourced else unseen
        dollar = LATE_DOLLAR if command.shell == "step" else "$"

        def marked(text: str) -> str:
            return text.replace("$", dollar).replace(EARLIER_DOLLAR, "$")

        return replace(
            command, words=tuple(map(marked, command.words)), unset=tuple(sorted(unset.union(command.unset))),
            unseen=tuple(sorted(unseen.union(command.unseen))),
            environment=tuple(map(marked, command.environment)), unexported=tuple(sorted(names & known.private)),
            assigns=tuple((name, marked(value)) for name, value in command.assigns),
        )  # fmt: skip


def _is_stripped(words: Sequence[str]) -> bool:
    """Whether a command begins with a word that changes nothing in what it starts; `command -v` is another."""
    return words[0] in _STRIPPED and not "".join(words[1:2]).startswith("-")


def _in_background(found: Sequence[ShellCommand], at: int) -> bool:
    while found[at].end == "|" and at + 1 < len(found):
        at += 1
    return found[at].end == "&"


def _assigned_in_loop(found: Sequence[ShellCommand], start: int) -> Iterator[str]:
    depth = 0
    for each in found[start:]:
        heads = [word for word in each.words[:2] if word not in _STRIPPED][:1]
        depth += (heads[0] in ("for", "while", "until", "select")) - (heads[0] == "done") if heads else 0
        if depth <= 0:
            return
        yield from (name[1] for word in each.words if (name := PATTERNS["changed"].match(word)))


def _unwrapped(
    words: list[str], srun: tuple[str, ...] | None
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...] | None, list[str]]:
    """The assignments before a command, what else stands before it, srun's options, and the command."""
    environment: list[str] = []
    wrappers: list[str] = []
    started: list[str] = []
    while words:
        word = words[0]
        if PATTERNS["assignment"].fullmatch(word):
            wrappers += [f"srun {word}"] if srun is not None and "srun" in started else []
            environment.append(words.pop(0))
        elif _is_stripped(words):
            words.pop(0)
        elif word in rules()["wrappers"] or (
            words[1:2] and words[1] in rules()["runners"].get(PurePosixPath(word).name, ())
        ):
            inner = _behind(words)
            skipped = words[: len(words) - len(inner)]
            environment += filter(PATTERNS["assignment"].fullmatch, skipped[1:] if word == "env" else ())
            wrappers, words = wrappers + skipped, inner
        elif word == "srun":
            wrappers += ["srun"] if srun is not None else []
            started.append(word)
            srun, words = _split_srun(words[1:])
        else:
            break
    return tuple(environment), tuple(wrappers), srun, words


def _behind(words: list[str]) -> list[str]:
    """The words from the first on that can be a program, behind a wrapper such as env or apptainer."""
    for at, word in enumerate(words[1:], 1):
        name = PurePosixPath(word).name
        if name in ("bash", "sh", "torchrun", "accelerate", "deepspeed", "srun") or PYTHON.fullmatch(name):
            return words[at:]
        if name.endswith(".py"):
            return ["python", *words[at:]]
    return []


def _split_srun(words: list[str]) -> tuple[tuple[str, ...], list[str]]:
    """srun's own options, a letter apart from its value, and the command."""
    at, switches = 0, rules()["srun"]["switches"]
    while at < len(words) and re.match(r"-|\$(?!\S*[/.])", words[at]):
        if joined := PATTERNS["letter"].fullmatch(words[at]):
            words = [*words[:at], *joined.groups(), *words[at + 1 :]]
        takes = re.fullmatch(r"--[^=]*|-[^=]", words[at]) and words[at] not in switches
        at += 2 if takes else 1
    return tuple(words[:at]), words[at:]
