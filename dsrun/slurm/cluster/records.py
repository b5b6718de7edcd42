"""scontrol's records as plain mappings."""

from __future__ import annotations

import re
from collections.abc import Iterator

_KEY = re.compile(r"(?:^|(?<=\s))([A-Za-z][A-Za-z0-9_:./\\]*)=")
_NOTHING = frozenset({"", "(null)", "N/A", "n/a", "None", "NONE"})
_JOB = re.compile(r"(?:JobId=(?P<id>\d+) )(?:ArrayJobId=(?P<array>\d+) ArrayTaskId=(?P<task>\S+) )?")


def pairs(line: str, free: frozenset[str] = frozenset()) -> dict[str, str]:
    """The words key=value of one line; a value goes on to the next key, for "OS=Linux 6.1" holds a blank.

    Of two values the first counts. The values of the keys `free`, which people write, are ended by one of these only.
    """
    found: dict[str, str] = {}
    keys: list[re.Match[str]] = []
    for key in _KEY.finditer(line):
        if not (keys and keys[-1][1] in free and key[1] not in free):
            keys.append(key)
    ends = [key.start() for key in keys[1:]] + [len(line)]
    for key, end in zip(keys, ends, strict=False):
        found.setdefault(key[1], line[key.end() : end].strip())
    return found


def oneliners(text: str, free: frozenset[str] = frozenset()) -> Iterator[dict[str, str]]:
    """The records of `scontrol --oneliner`, one a line; "No licenses configured" is none."""
    return (found for line in text.splitlines() if (found := pairs(line, free)))


def settings(text: str) -> dict[str, str]:
    """`scontrol show config`: lines of `key = value`."""
    found = (line.partition("=") for line in text.splitlines())
    return {key.strip(): value.strip() for key, equals, value in found if equals}


def value(record: dict[str, str], key: str) -> str | None:
    """What stands under `key`; None for no such key and for SLURM's words for nothing."""
    text = record.get(key, "")
    return None if text in _NOTHING else text


def names(record: dict[str, str], key: str) -> tuple[str, ...]:
    """A list with commas; () for nothing and for ALL."""
    text = value(record, key)
    return () if text is None or text == "ALL" else tuple(word for word in text.split(",") if word)


def jobs(text: str) -> Iterator[dict[str, str]]:
    """The records of `scontrol show job`, one key=value or several on each line.

    The first line ends with the job's name, and the lines of paths, command and comment hold one key each: these
    values go on to the end of their line, whatever is in them.
    """
    for block in re.split(r"(?m)^(?=JobId=\d)", text):
        lines = block.splitlines()
        head = _JOB.match(lines[0]) if lines else None
        if not head:
            continue
        found = {"JobId": head["id"], "JobName": lines[0].partition("JobName=")[2]}
        if head["array"]:
            found |= {"ArrayJobId": head["array"], "ArrayTaskId": head["task"]}
        for line in lines[1:]:
            key, equals, rest = line.strip().partition("=")
            if key in _WHOLE_LINES:
                found.setdefault(key, rest)
            elif equals:
                found = {**pairs(line), **found}
        yield found


_WHOLE_LINES = frozenset(
    {"Command", "WorkDir", "StdErr", "StdIn", "StdOut", "Comment", "AdminComment", "SystemComment"}
)
