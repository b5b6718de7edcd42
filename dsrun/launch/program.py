"""A program for torch.distributed.run, from the words of a command line."""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from dsrun.errors import UsageError
from dsrun.launch.launchers import ASSIGNMENT, PYTHON, SHELLS, launcher_in, trainer_fix

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
    if that was named, and without GPUs if `on_cpu`. `interpreter` is a Python that the user named by its path.
    """

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
        torch.distributed.elastic.utils.api); a doubled $ comes through as the one that was meant.
        """
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
