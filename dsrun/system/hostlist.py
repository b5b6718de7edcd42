"""Names of machines: SLURM's compressed lists and the hostfiles of DeepSpeed and MPI."""

import re
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from dsrun.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9_.:@%-]+")
# A slip such as gpu[1-999999999] must not fill the memory; no cluster has so many nodes.
_MOST = 100_000
# Nor must a number of thousands of digits end in a traceback, as int() refuses it (sys.set_int_max_str_digits).
_NUMBER = r"\d{1,18}"


def expand_hosts(text: str) -> tuple[str, ...]:
    """The machines of a list as SLURM writes it, each once: "gpu[08-10],login" is gpu08, gpu09, gpu10, login.

    Several brackets in one name multiply ("rack[1-2]n[1-2]"). Raises UsageError for what is no such list."""
    parts = re.findall(r"(?:\[[^\]]*\]|[^\[\],\s]|[\[\]])+", text)  # split at commas and spaces outside brackets
    names = [name for part in parts for name in _expanded(part, text)]
    wrong = next((name for name in names if not _NAME.fullmatch(name) or name.startswith("-")), None)
    if wrong is not None or not names:
        raise UsageError(f"{text!r} is not a list of nodes", fix="write it as gpu[01-04],login")
    return tuple(dict.fromkeys(names))


def _expanded(part: str, whole: str) -> list[str]:
    names = [""]
    for literal, ranges in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", part):
        choices = [literal] if literal else _numbers(ranges, whole)
        if len(names) * len(choices) > _MOST:
            raise UsageError(f"{whole!r} names more than {_MOST} nodes", fix="name fewer")
        names = [name + choice for name in names for choice in choices]
    if part.count("[") != part.count("]"):
        raise UsageError(f"{whole!r}: a bracket is missing", fix="write it as gpu[01-04],login")
    return names


def _numbers(ranges: str, whole: str) -> list[str]:
    """The numbers in one pair of brackets, with their leading zeros: "08-10,3" is 08, 09, 10, 3."""
    numbers: list[str] = []
    for each in ranges.split(","):
        found = re.fullmatch(rf"({_NUMBER})(?:-({_NUMBER}))?", each.strip())
        if not found or int(found[2] or found[1]) - int(found[1]) not in range(_MOST):
            raise UsageError(f"{whole!r}: [{ranges}] is not a range of numbers", fix="write it as gpu[01-04],login")
        numbers += [str(n).zfill(len(found[1])) for n in range(int(found[1]), int(found[2] or found[1]) + 1)]
    return numbers


def read_hostfile(path: Path) -> tuple[str, ...]:
    """The machines of a hostfile: one a line, the rest of the line (`slots=8`) left out, # for remarks.

    Raises UsageError when it cannot be read, or names none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"{path}: cannot be read: {why}", fix="name a hostfile") from None
    hosts = [line.split("#")[0].split() for line in lines]
    names = tuple(dict.fromkeys(fields[0] for fields in hosts if fields))
    wrong = next((name for name in names if not _NAME.fullmatch(name) or name.startswith("-")), None)
    if wrong is not None:
        raise UsageError(f"{path}: {wrong!r} is not a machine name", fix="one `name slots=N` a line")
    if not names:
        raise UsageError(f"{path}: names no machine", fix="one `name slots=N` a line")
    return names


_NUMBERED = re.compile(rf"(.*?)({_NUMBER})(\D*)")


def compressed(names: Iterable[str]) -> str:
    """ "gpu[01-03,7],login" for gpu01, gpu02, gpu03, gpu7 and login; `dsrun.system.hostlist` takes it apart again.

    Only the last number of a name is compressed, and only with others of its width."""
    groups: dict[tuple[str, int, str], list[int]] = {}
    for name in dict.fromkeys(names):
        found = _NUMBERED.fullmatch(name)
        key = (found[1], len(found[2]), found[3]) if found else (name, 0, "")
        groups.setdefault(key, []).extend([int(found[2])] if found else [])
    return ",".join(_group(*key, sorted(numbers)) for key, numbers in groups.items())


def _group(front: str, width: int, end: str, numbers: list[int]) -> str:
    if len(numbers) < 2:
        return front + (str(numbers[0]).zfill(width) if numbers else "") + end
    # Numbers that follow one another are as far from their places.
    stretches = groupby(enumerate(numbers), lambda each: each[1] - each[0])
    runs = [[number for _, number in stretch] for _, stretch in stretches]
    spans = (str(run[0]).zfill(width) + (f"-{str(run[-1]).zfill(width)}" if len(run) > 1 else "") for run in runs)
    return f"{front}[{','.join(spans)}]{end}"
