"""Many nodes' names in few characters, as SLURM writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)")


def compressed(names: Iterable[str]) -> str:
    """ "gpu[01-03,7],login" for gpu01, gpu02, gpu03, gpu7 and login; `dsrun.system.hostlist` takes it apart again.

    Only the last number of a name is compressed, and only with others of its width.
    """
    groups: dict[tuple[str, int, str], list[int]] = {}
    for name in dict.fromkeys(names):
        found = _NUMBERED.fullmatch(name)
        key = (found[1], len(found[2]), found[3]) if found else (name, 0, "")
        groups.setdefault(key, []).extend([int(found[2])] if found else [])
    return ",".join(_group(*key, sorted(numbers)) for key, numbers in groups.items())


def _group(front: str, width: int, end: str, numbers: list[int]) -> str:
    if len(numbers) < 2:
        return front + (str(numbers[0]).zfill(width) if numbers else "") + end
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = (
        str(run[0]).zfill(width) + (f"-{str(run[-1]).zfill(width)}" if len(run) > 1 else "") for run in runs
    )
    return f"{front}[{','.join(words)}]{end}"
