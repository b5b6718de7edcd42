"""The exception at the end of a Python traceback, whatever a launcher, a container or a logger writes before each line.

Exceptions are recognised by where they stand, because many are not called Error: TimeoutExpired, Unsupported,
BrokenProcessPool, RayTaskError(ValueError).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from dsrun.diagnosis.notation import STAMP, without_prefix

HEADER = b"Traceback (most recent call last)"
# Bytes behind its header in which a traceback has its end.
AHEAD = 1 << 16
_NEXT = 4000
# A module's name is in lower case; a class without one begins with a capital and is not all capitals, as levels are.
_NAME = r"(?:(?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*|_?[A-Z]\w*[a-z]\w*)(?:\([\w.]+\))?"
_NAMED = re.compile(rf"{_NAME}(?:: |:?\s*$)")
# Without the traceback in front of it only what is certainly one.
_BARE = re.compile(r"(?:[A-Za-z_]\w*\.)*_?[A-Za-z]\w*(?:Error|Exception)(?:\([\w.]+\))?(?:: |:?\s*$)")
# These only repeat that a worker failed.
_REPEATED = re.compile(r"\b(ChildFailedError|SignalException|CalledProcessError)\b")
_STAMP = re.compile(STAMP.encode())
_CHAINED = re.compile(rb"(?:During handling of the above|The above exception was)")
_IGNORED = b"Exception ignored in"


def is_exception(line: str) -> bool:
    """Whether `line` reads as the last one of a traceback, on its own."""
    return bool(_BARE.match(without_prefix(line))) and not _REPEATED.search(line)


class Place(NamedTuple):
    """Begin and end of a line; `cut`: it is the last one of a traceback that has no end."""

    begin: int
    end: int
    cut: bool = False


def exception_after(data: bytes, position: int) -> Place | None:
    """Where in `data` the exception stands of the traceback whose header is at `position`.

    The last line there is where the traceback is cut off. None where the interpreter ignored the exception, where
    another one followed from it, and for a launcher's that only repeats its workers'.
    """
    begin = data.rfind(b"\n", 0, position) + 1
    if _IGNORED in data[data.rfind(b"\n", 0, max(begin - 1, 0)) + 1 : begin]:
        return None
    newline = data.find(b"\n", position)
    after = newline + 1 if newline >= 0 else len(data)
    prefix = _prefix_of_frames(data, data[begin:position], after)
    for match in _lines(prefix, rb"(\S[^\r\n]*)").finditer(data, after, after + AHEAD):
        line = match[1].decode(errors="replace")
        if _NAMED.match(line):
            if _REPEATED.search(line) or _CHAINED.search(data, match.end(), match.end() + _NEXT):
                return None
            return Place(match.start(), match.end())
        if line.startswith(HEADER.decode()):
            break
    if after + AHEAD > len(data) > after:
        end = len(data.rstrip())
        return Place(data.rfind(b"\n", 0, end) + 1, end, cut=True)
    return Place(begin, newline if newline >= 0 else len(data), cut=True)


def _prefix_of_frames(data: bytes, header: bytes, after: int) -> bytes:
    """What stands before the indentation of the frames: as in the header's line, but a logger marks only that one."""
    own = _lines(header, rb"( *)  File \"").search(data, after, after + _NEXT)
    if own:
        return header + own[1]
    frame = _lines(b"", rb"([^\r\n]*?)  File \"").search(data, after, after + _NEXT)
    return frame[1] if frame else header


@lru_cache(maxsize=256)
def _lines(prefix: bytes, rest: bytes) -> re.Pattern[bytes]:
    """Lines of that prefix, in which time stamps may differ, and `rest` behind it."""
    parts = [re.escape(part) for part in _STAMP.split(prefix)]
    return re.compile(rb"^" + STAMP.encode().join(parts) + rest, re.M)
