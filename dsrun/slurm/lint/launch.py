"""A command of a script: behind srun or not, through which launcher, with which arguments."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any, Literal

from dsrun.datafiles import toml_beside
from dsrun.system.shell import ASSIGNMENT, LITERAL_DOLLAR

LauncherKind = Literal["torchrun", "accelerate", "deepspeed", "program"]
# Stands for a dollar sign that a shell on the nodes expands; a plain one in a command is the batch shell's.
LATE_DOLLAR = "\ue002"
PYTHON = re.compile(r"python(?:[23](?:\.\d+)?)?")
MODULES: dict[str, LauncherKind] = toml_beside(__file__, "rules.toml")["modules"]
_SCRIPT = re.compile(r".*\.py|-m")
_FOUND = re.compile(r".\((which|command -v|type -p|realpath|readlink)\b")
_DOLLARS = ("$", LATE_DOLLAR, LITERAL_DOLLAR)


@dataclass(frozen=True, kw_only=True)
class ScriptCommand:
    """A command as the shell that runs it has expanded it, as far as that is known without running the script.

    `words` begin with the program, behind srun, env or a container; `wrappers` are those. `at` is the place of the
    command, or of that in which it stands, among the script's. `srun` are the options of srun, None without; `shell`
    expanded the words: the batch shell, or one of each task (step). `assigns` are the variables that it sets in its
    shell. `blocks` are the loops, conditions and functions around it, the outermost first. `unset` are variables in it
    that have no value there, `unseen` also those to which a file that the script sources may give one, `unexported`
    those that the batch shell has set for itself alone. `last`: none is behind it in its shell."""

    line: int
    kind: LauncherKind | None
    words: tuple[str, ...]
    srun: tuple[str, ...] | None = None
    shell: Literal["batch", "step"] = "batch"
    environment: tuple[str, ...] = ()
    assigns: tuple[tuple[str, str], ...] = ()
    exports: bool = False
    wrappers: tuple[str, ...] = ()
    background: bool = False
    end: str = "\n"
    blocks: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    unexported: tuple[str, ...] = ()
    document: str = ""
    at: int = 0
    last: bool = True

    @property
    def assignments(self) -> Iterator[tuple[str, str, bool]]:
        """The variables that it sets, in its shell or, True, for the program alone."""
        yield from ((name, value, False) for name, value in self.assigns)
        handed = (self.srun_option("--export") or "").split(",") if self.shell == "batch" else ()
        yield from (
            (found[1], found[2], True) for found in map(ASSIGNMENT.fullmatch, (*self.environment, *handed)) if found
        )

    @property
    def known_options(self) -> list[str]:
        """The options of the launcher."""
        return [each for table in rules()["launchers"].get(self.kind, {}).values() for each in table]

    @property
    def text(self) -> str:
        return " ".join(("srun", *self.srun, *self.words) if self.srun is not None else self.words)

    @property
    def name(self) -> str:
        """The launcher as users call it; of a program its file."""
        if self.kind == "program":
            return next((word for word in self.words[1:] if not word.startswith("-")), self.words[0])
        return "accelerate launch" if self.kind == "accelerate" else self.kind or self.words[0]

    @property
    def own(self) -> tuple[str, ...]:
        """The launcher's options, or Python's."""
        return self.words[self._own_start : self._program_start]

    @property
    def program(self) -> tuple[str, ...]:
        """What the launcher starts, with its arguments."""
        return self.words[self._program_start :]

    @property
    def _own_start(self) -> int:
        module = next((at for at, word in enumerate(self.words) if word in MODULES), None)
        return 1 + (module or (self.kind == "accelerate"))

    @property
    def _program_start(self) -> int:
        if self.kind == "program":
            return next((at for at, each in enumerate(self.words[1:], 1) if _SCRIPT.fullmatch(each)), 1)
        at, known = self._own_start, rules()["launchers"].get(self.kind, {"switches": []})
        while at < len(self.words):
            word, following = self.words[at], "".join(self.words[at + 1 : at + 2])
            if word in ("-m", "--module", "--") or not (word.startswith(("-", *_DOLLARS))):
                break
            if word.startswith(_DOLLARS) and (_SCRIPT.fullmatch(word) or _FOUND.match(word)):
                break
            takes = (
                word.startswith("-") and "=" not in word and f"--{word[2:].replace('-', '_')}" not in known["switches"]
            )
            at += 2 if takes and following and not following.startswith("-") else 1
        return at

    @property
    def opaque(self) -> bool:
        """Whether a word among the launcher's options is not known, so that it may hold some."""
        before = ("", *self.own)
        return any(
            word.startswith(_DOLLARS) and not (option.startswith("-") and "=" not in option)
            for option, word in zip(before, self.own, strict=False)
        )

    def option(self, *names: str) -> str | None:
        """The value of the first of these flags of the launcher, with hyphens or underscores; "" without a value."""
        return flag_value(self.own, names)

    def argument(self, *names: str) -> str | None:
        """As `option`, of the program."""
        return flag_value(self.program, names)

    def srun_option(self, *names: str) -> str | None:
        """As `option`, of srun."""
        return flag_value(self.srun or (), names)


def flag_value(words: Sequence[str], names: Sequence[str]) -> str | None:
    wanted = {name.replace("_", "-") for name in names}
    for word, following in pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") in wanted:
            return value if equals else following
    return None


@cache
def rules() -> dict[str, Any]:
    """rules.toml: options of sbatch, srun and the launchers, and the texts of the findings by their code."""
    return toml_beside(__file__, "rules.toml")


def launcher_kind(words: Sequence[str]) -> LauncherKind | None:
    """Through what a command trains; None for one that does not."""
    name = PurePosixPath(words[0]).name if words else ""
    if name in ("torchrun", "deepspeed"):
        return "torchrun" if name == "torchrun" else "deepspeed"
    if name == "accelerate" and words[1:2] == ["launch"]:
        return "accelerate"
    return _kind_of_python(words) if PYTHON.fullmatch(name) else None


def _kind_of_python(words: Sequence[str]) -> LauncherKind | None:
    """What Python runs; None for what does not train, as `python -c` and a program on standard input."""
    for word, following in pairwise([*words[1:], ""]):
        if word == "-m":
            return None if following in rules()["modules_that_prepare"] else MODULES.get(following, "program")
        if word == "-c":
            return None
        if not word.startswith("-"):
            return "program" if _SCRIPT.fullmatch(word) or word.startswith(_DOLLARS) else None
    return None
