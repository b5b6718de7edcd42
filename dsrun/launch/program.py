"""A program for torch.distributed.run, from the words of a command line; and launchers of workers in one that itself
runs once per GPU: by name, behind other commands, in shell scripts."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from dsrun.datafiles import toml_beside
from dsrun.errors import UsageError

PYTHON = re.compile(r"python(?:3(?:\.\d+)?)?")
_TABLE = toml_beside(__file__)
_SCHEDULERS = frozenset(_TABLE["schedulers"])
LAUNCHERS = _SCHEDULERS.union(_TABLE["launchers"])
"""What starts workers itself: as programs, and as Python's modules."""
TRAINERS: Mapping[str, str] = _TABLE["trainers"]
"""Commands that start workers for training, and the module that each of these runs; "" where it is not known."""
_CHOICES: Mapping[str, Mapping[str, str]] = _TABLE["choices"]
_WRAPPERS, _RUNNERS = _TABLE["wrappers"], _TABLE["runners"]
SHELLS = frozenset({"bash", "sh", "dash", "zsh"})
_BEFORE_COMMANDS = frozenset({"if", "then", "do", "else", "elif", "while", "until", "!", "{", "command", "eval"})
ASSIGNMENT = re.compile(r"\w+=.*", re.DOTALL)
_DIRECTIVE = re.compile(r"^#SBATCH\s", re.MULTILINE)
_LONGEST_SCRIPT = 1 << 18


def launcher_in(argv: Sequence[str]) -> str | None:
    """The launcher that the command `argv` starts, itself or through other commands; None for none."""
    words = list(argv)
    while words:
        base = PurePosixPath(words[0]).name
        command = f"{base} {' '.join(words[1:2])}"
        if base in LAUNCHERS or command in TRAINERS:
            alone = _starts_none(_CHOICES.get(command, {}), words[2:])
            return base if base in LAUNCHERS else None if alone else command
        if PYTHON.fullmatch(base):
            module = _module(words[1:])
            return next((name for name in (*module[:1], " ".join(module)) if name in LAUNCHERS | TRAINERS.keys()), None)
        if base == "dsrun":
            return next((f"dsrun {name}" for name in words[1:2] if name in ("launch", "render-slurm")), None)
        if base in SHELLS:
            return _in_shell(words[1:])
        if base in _BEFORE_COMMANDS or ASSIGNMENT.fullmatch(words[0]):
            words = words[1:]
        elif base in _WRAPPERS:
            words = _behind_options(words[1:], _WRAPPERS[base])[base == "timeout" :]  # its first word is the time
        elif base in _RUNNERS:
            words = _behind_run(words[1:], _RUNNERS[base])
        else:
            return None
    return None


def _starts_none(choice: Mapping[str, str], words: Sequence[str]) -> bool:
    """Whether a command of TRAINERS is a worker itself, by its words or by the variables here."""
    if "variables" in choice:
        return not any(map(os.environ.get, choice["variables"].split()))
    return bool(choice and re.search(choice["none"], shlex.join(words)))


def trainer_fix(launcher: str, words: Sequence[str]) -> str:
    """What to write instead of a command of TRAINERS with these words; "" for others, and where that is unknown."""
    choice, module = _CHOICES.get(launcher, {}), TRAINERS.get(launcher)
    if "fix" in choice or not module:
        return choice.get("fix", "")
    rest = re.sub(choice.get("all", ""), "", shlex.join(words))
    return f"-- python -m {module} {rest.strip() or 'CONFIG.yml'}"


def _module(words: Sequence[str]) -> Sequence[str]:
    """The module of Python's -m, if its arguments have one before the script, and the word behind it."""
    words = _behind_options(words, "-X -W", end="-m")
    return words[1:3] if words[:1] == ["-m"] else ()


def _behind_options(words: Sequence[str], valued: str, end: str = "") -> list[str]:
    """`words` from the first that is neither an option, nor its value, nor NAME=VALUE; or from `end`."""
    at = 0
    while at < len(words) and words[at] != end and (words[at].startswith("-") or ASSIGNMENT.fullmatch(words[at])):
        at += 2 if words[at] in valued.split() else 1
    return list(words[at:])


def _behind_run(words: Sequence[str], valued: str) -> list[str]:
    """The command of `uv run …` and the like; with -m of uv it is Python's module."""
    words = _behind_options(words, valued)
    if words[:1] != ["run"]:
        return []
    inner = _behind_options(words[1:], valued, end="-m")
    return ["python", *inner] if inner[:1] == ["-m"] else inner


def _in_shell(words: Sequence[str]) -> str | None:
    """A launcher of `bash -c TEXT`, or the name of a batch script that bash would run."""
    if words and words[0].startswith("-") and words[0].endswith("c"):
        found = _in_commands(words[1]) if len(words) > 1 else None
        return found[1] if found else None
    return next((word for word in words[:1] if word.endswith((".sbatch", ".slurm"))), None)


def _in_commands(text: str) -> tuple[int, str] | None:
    """Line and name of the first launcher of training among the commands of a shell script.

    A worker may well submit the next job; srun and mpirun are left out likewise."""
    from dsrun.system.shell import commands, live  # few programs are shell scripts

    for each in commands(text):
        name = launcher_in([live(word) for word in each.words])
        if name and name not in _SCHEDULERS:
            return each.line, name
    return None


def refuse_scripts(argv: Sequence[str], cwd: Path) -> None:
    """Raise UsageError for a program that is a shell script for sbatch, or that starts workers itself."""
    words = argv[1:] if PurePosixPath(argv[0]).name in SHELLS else argv
    text = _shell_script(cwd / words[0], is_one=words is not argv) if words else None
    if text is None:
        return
    from dsrun.launch.refusals import refusal  # few programs are shell scripts

    if _DIRECTIVE.search(text):
        raise refusal("script.of_sbatch", script=words[0])
    if found := _in_commands(text):
        raise refusal("script.starts_workers", script=words[0], line=found[0], launcher=found[1])


def _shell_script(path: Path, *, is_one: bool) -> str | None:
    """The text of a shell script; None for other files."""
    try:
        with path.open("rb") as file:
            text = file.read(_LONGEST_SCRIPT).decode("utf-8", "replace")
    except (OSError, ValueError):
        return None
    first = text.partition("\n")[0]
    return text if is_one or (first.startswith("#!") and re.search(r"\b(ba|da|z)?sh\b", first)) else None


WORKER = "dsrun.train"
LOCAL_RANK = "${local_rank}"
"""As the value of a program's flag: the number of the rank on its machine, which torch.distributed.run fills in."""
FIX = "-- python my_train.py …; variables with --env NAME=VALUE"
_SLUG = re.compile(r"[^A-Za-z0-9._-]+")
# Not one with a path, behind another command (apptainer, srun), or of an environment that the line enters.
_PYTHON_COMMAND = re.compile(rf"(^|[;&|]|\bexec\s)\s*(\w+=\S*\s+)*({PYTHON.pattern})\s")
_OTHER_PYTHON = re.compile(r"\bPATH=|\b(activate|module|ml|source)\b")


class JobProgram(NamedTuple):
    """A program for torch.distributed.run.

    `mode` are the options it needs, `entry` what it starts (a module, a script or an executable) with `args`.
    `trains`: it is dsrun's own worker, which saves on a signal and leaves a FINISHED marker, in the run folder `output`
    if that was named, and without GPUs if `on_cpu`. `interpreter` is a Python that the user named by its path."""

    entry: str
    args: tuple[str, ...] = ()
    mode: tuple[str, ...] = ()
    trains: bool = False
    output: str | None = None
    on_cpu: bool = False
    name: str = "dsrun"
    interpreter: str | None = None

    @property
    def argv(self) -> tuple[str, ...]:
        """The arguments behind torch.distributed.run's own options.

        `--` keeps its parser away from the program's flags, which it would take by their prefix. It fills
        `$local_rank` into all that it hands on to a Python program's command line, and makes $$ of $ (macros in
        torch.distributed.elastic.utils.api); a doubled $ comes through as the one that was meant."""
        entry = self.entry if "--no-python" in self.mode else through_macros(self.entry)
        return (*self.mode, "--", entry, *map(through_macros, self.args))

    @property
    def uses_python(self) -> bool:
        """Whether the Python that starts workers runs it, also at the end of a shell's command line."""
        if "--no-python" not in self.mode or PYTHON.fullmatch(PurePosixPath(self.entry).name):
            return True
        lines = self.args if self.entry in SHELLS else ()
        return any(_PYTHON_COMMAND.search(line) and not _OTHER_PYTHON.search(line) for line in lines)

    @property
    def file(self) -> str | None:
        """The file that it starts, also a shell's script; None for a module, and for a program sought on PATH."""
        if "--no-python" in self.mode and PurePosixPath(self.entry).name in SHELLS and self.args:
            return None if self.args[0].startswith(("-", "+")) else self.args[0]
        if "--module" in self.mode or ("--no-python" in self.mode and "/" not in self.entry):
            return None
        return self.entry


def through_macros(word: str) -> str:
    """A word of the program for torch.distributed.run, which fills in nothing but LOCAL_RANK as a flag's value."""
    return word if word.endswith(f"={LOCAL_RANK}") else word.replace("$", "$$")


def train_program(
    args: Sequence[str], *, output: str | None = None, name: str = "train", on_cpu: bool = False
) -> JobProgram:
    """dsrun's own worker with the flags of `dsrun train`."""
    return JobProgram(
        entry=WORKER, args=tuple(args), mode=("--module",), trains=True, output=output, on_cpu=on_cpu, name=slug(name)
    )


def any_program(argv: Sequence[str], *, fix: str = FIX) -> JobProgram:
    """A Python script or module, or any other executable. Raises UsageError for anything else, with `fix` for what
    starts workers itself."""
    if argv[0] == "-m" or argv[0].endswith(".py"):
        argv = ("python", *argv)
    first, *rest = argv
    if not first:
        raise UsageError("the program after -- is an empty word")
    if first.startswith("-"):
        raise UsageError(f"-- {first}: a program comes first", fix="-- train --model …, or -- python my_train.py …")
    if ASSIGNMENT.fullmatch(first):
        raise UsageError(f"-- {first.partition('=')[0]}=…: a variable is no program", fix=fix)
    base = PurePosixPath(first).name
    if base == "accelerate" and rest[:1] != ["launch"]:
        raise UsageError(f"-- {' '.join(argv[:2])}: of accelerate's commands only launch starts a program", fix=fix)
    if launcher := launcher_in(argv):
        shown = first + launcher.removeprefix(base) if launcher.startswith(base) else f"{first} … {launcher}"
        fix = trainer_fix(launcher, argv[2:] if launcher.startswith(base) else ()) or fix
        raise UsageError(
            f"-- {shown}: the job starts one worker per GPU itself, and each would start all of them again", fix=fix
        )
    is_python = PYTHON.fullmatch(base)
    if is_python and not rest:
        raise UsageError(f"-- {first}: no script is named", fix="-- python my_train.py --flag value")
    if is_python and rest == ["-m"]:
        raise UsageError(f"-- {first} -m: no module is named", fix="-- python -m package.module --flag value")
    if not is_python or (rest[0].startswith("-") and rest[0] != "-m"):
        # -u, -c, -X …: torchrun knows none of Python's own options, so Python is the executable.
        return JobProgram(entry=first, args=tuple(rest), mode=("--no-python",), name=slug(base))
    mode = ("--module",) if rest[0] == "-m" else ()
    entry, *args = rest[len(mode) :]
    name, interpreter = slug(entry if mode else PurePosixPath(entry).stem), first if "/" in first else None
    return JobProgram(entry=entry, args=tuple(args), mode=mode, name=name, interpreter=interpreter)


def slug(name: str) -> str:
    """`name` as part of a folder's name that needs no quoting."""
    return _SLUG.sub("-", name).strip("-._")[:60] or "job"
