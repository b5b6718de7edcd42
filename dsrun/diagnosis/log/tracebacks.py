"""The exception at the end of a Python traceback, whatever a launcher, a container or a logger writes before each line.

Exceptions are recognised by where they stand, because many are not called Error: TimeoutExpired, Unsupported,
BrokenProcessPool, RayTaskError(ValueError).
"""

import re
from functools import lru_cache
from typing import Literal, NamedTuple

from dsrun.diagnosis.log.notation import STAMP, without_prefix

HEADER = b"Traceback (most recent call last)"
# Bytes behind its header in which a traceback has its end.
AHEAD = 1 << 16
_NEXT = 4000
# A module's name is in lower case; a class without one begins with a capital and is not all capitals, as levels are.
_NAME = r"(?:(?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*|_?[A-Z]\w*[a-z]\w*)(?:\([\w.]+\))?"
_NAMED = re.compile(rf"{_NAME}(?:: |:?\s*$)")
# Without the traceback in front of it only what is certainly one.
# A bare "Error: 0.25" is a metric.
_BARE = re.compile(
    r"(?:[A-Za-z_]\w*\.)*_?[A-Za-z]\w*(?:Error|Exception)(?:\([\w.]+\))?(?:: |:?\s*$)|Exception: \S|Error: [A-Za-z]"
)
# These only repeat that a worker failed.
_REPEATED = re.compile(r"\b(ChildFailedError|SignalException|CalledProcessError)\b")
_STAMP = re.compile(STAMP.encode())
_CHAINED = re.compile(rb"(?:During handling of the above|The above exception was)")
_IGNORED = b"Exception ignored in"


def is_exception(line: str) -> bool:
    """Whether `line` reads as the last one of a traceback, on its own."""
    return bool(_BARE.match(without_prefix(line))) and not _REPEATED.search(line)


class TracebackEnd(NamedTuple):
    """The line, from `begin` to `end`, in which a traceback ends.

    `kind`: an exception; a frame, where the traceback is cut off; or no news, where the interpreter ignored the
    exception, another one followed from it, or a launcher only repeats its workers'.
    """

    begin: int
    end: int
    kind: Literal["exception", "cut", "no news"]


def end_of_traceback(data: bytes, position: int) -> TracebackEnd:
    """Where in `data` the traceback ends whose header is at `position`."""
    begin = data.rfind(b"\n", 0, position) + 1
    newline = data.find(b"\n", position)
    stop = newline if newline >= 0 else len(data)
    if quoted := _in_one_line(data, position, stop):
        return quoted
    after = min(stop + 1, len(data))
    ignored = _IGNORED in data[data.rfind(b"\n", 0, max(begin - 1, 0)) + 1 : begin]
    prefix = _prefix_of_frames(data, data[begin:position], after)
    for match in _lines(prefix, rb"(\S[^\r\n]*)").finditer(data, after, after + AHEAD):
        line = match[1].decode(errors="replace")
        if _NAMED.match(line):
            chained = _CHAINED.search(data, match.end(), match.end() + _NEXT // 10)
            news = not (ignored or chained or _REPEATED.search(line))
            return TracebackEnd(match.start(), match.end(), "exception" if news else "no news")
        if line.startswith(HEADER.decode()):
            break
    if after + AHEAD > len(data) > after:
        stop = len(data.rstrip())
        begin = data.rfind(b"\n", 0, stop) + 1
    return TracebackEnd(begin, stop, "no news" if ignored else "cut")


def _prefix_of_frames(data: bytes, header: bytes, after: int) -> bytes:
    """What stands before the indentation of the frames: as in the header's line, but a logger marks only that one."""
    own = _lines(header, rb"( *)  File \"").search(data, after, after + _NEXT)
    if own:
        return header + own[1]
    frame = _lines(b"", rb"([^\r\n]*?)  File \"").search(data, after, after + _NEXT)
    if frame:
        return frame[1]
    return header if header and data.find(b"\n" + header, after - 1, after + _NEXT) >= 0 else b""


def _in_one_line(data: bytes, begin: int, end: int) -> TracebackEnd | None:
    """The exception of a traceback that a logger has written into one line, as a JSON string."""
    position = begin
    while (position := data.find(b"\\n", position, end)) >= 0:
        position += 2
        stop = min((at for mark in (b"\\n", b'"') if (at := data.find(mark, position, end)) >= 0), default=end)
        if _NAMED.match(data[position:stop].decode(errors="replace")):
            return TracebackEnd(position, stop, "exception")
    return None


@lru_cache(maxsize=256)
def _lines(prefix: bytes, rest: bytes) -> re.Pattern[bytes]:
    """Lines of that prefix, in which time stamps may differ, and `rest` behind it."""
    parts = [re.escape(part) for part in _STAMP.split(prefix)]
    return re.compile(rb"^" + STAMP.encode().join(parts) + rest, re.M)
