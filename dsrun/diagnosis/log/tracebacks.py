"""The exception at the end of a Python traceback, whatever a launcher, a container or a logger writes before each line.

Exceptions are recognised by where they stand, because many are not called Error: TimeoutExpired, Unsupported,
BrokenProcessPool, RayTaskError(ValueError).
"""

import re
from functools import lru_cache
from typing import Literal, NamedTuple

from dsrun.diagnosis.log.notation import STAMP, without_prefix
from dsrun.system.patterns import patterns_beside

_KINDS = patterns_beside(__file__, "records.toml", table="kinds")
HEADER = b"Traceback (most recent call last)"
# Bytes behind its header in which a traceback has its end.
AHEAD = 1 << 16
_NEXT = 4000
# So many ranks' tracebacks stand within one another; more of them are cut off.
_MIXED = 16
# A module's name is in lower case; a class without one begins with a capital and is not all capitals, as levels are.
_NAME = r"(?:(?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*|_?[A-Z]\w*[a-z]\w*)(?:\([\w.]+\))?"
_NAMED = re.compile(rf"{_NAME}(?:: |:?\s*$)|(?:\w+\.)*[A-Z][a-z]+[A-Z]\w+ in \S")
# Without the traceback in front of it only what is certainly one.
# A bare "Error: 0.25" is a metric.
_BARE = re.compile(
    r"(?:[A-Za-z_]\w*\.)*_?[A-Za-z]\w*(?:Error|Exception)(?:\([\w.]+\))?(?:: |:?\s*$)|Exception: \S|Error: [A-Za-z]"
)
_REPEATED = _KINDS["repeated"]
_CLASS = r"(?:[A-Za-z_]\w*\.)*(?:_?[A-Z]\w*[a-z]\w*|\w+error)(?:\([\w.]+\))?"
_SAID = re.compile(rf"(?:raise )?(?P<type>{_CLASS})(?:[:：] ?|\(|$)(?P<message>.*)")
_SAID_WITHIN = _KINDS["within"]
_STAMP = re.compile(STAMP.encode())
_CHAINED = re.compile(rb"(?:During handling of the above|The above exception was)")
_FRAME = re.compile(rb'File "([^"\r\n]+)", line (\d+)')
_END = re.compile(rb"[\r\n]")
_IGNORED = b"Exception ignored in"


def is_exception(line: str) -> bool:
    """Whether `line` reads as the last one of a traceback, on its own."""
    return bool(_BARE.match(without_prefix(line))) and not _REPEATED.search(line)


def names_exception(line: str) -> bool:
    """Whether `line`, which stands below the frames of a traceback, is its exception."""
    return bool(_NAMED.match(line))


class SaidException(NamedTuple):
    """The class of an exception, with its module where the log has that, and its message; of a line that names none
    the class is "" and the message all of it."""

    type: str
    message: str


def exception_in(line: str) -> SaidException:
    """What `line` says, behind whatever stands in front of the exception."""
    text = without_prefix(line).strip()
    found = _SAID.match(text) or _SAID_WITHIN.search(text)
    return SaidException(found["type"], found["message"].strip()) if found else SaidException("", text)


class TracebackEnd(NamedTuple):
    """The line, from `begin` to `end`, in which a traceback ends.

    `kind`: an exception; a frame, where the traceback is cut off; or no news, where the interpreter ignored the
    exception, another one followed from it, or a launcher only repeats its workers'. `frames` are the files and lines
    of its calls, the deepest last.
    """

    begin: int
    end: int
    kind: Literal["exception", "cut", "no news"]
    frames: tuple[str, ...] = ()


def end_of_traceback(data: bytes, position: int) -> TracebackEnd:
    """Where in `data` the traceback ends whose header is at `position`."""
    begin = max(data.rfind(b"\n", 0, position), data.rfind(b"\r", 0, position)) + 1
    newline = _END.search(data, position)
    stop = newline.start() if newline else len(data)
    after = min(stop + 1, len(data))
    ignored = _IGNORED in data[data.rfind(b"\n", 0, max(begin - 1, 0)) + 1 : begin]
    prefix = _prefix_of_frames(data, data[begin:position], after)
    begun = 0
    for match in _lines(prefix, rb"(\S[^\r\n]*)").finditer(data, after, after + AHEAD):
        line = match[1].decode(errors="replace")
        begun += line.startswith(HEADER.decode())
        if begun > _MIXED:
            break
        if names_exception(line):
            chained = _CHAINED.search(data, match.end(), match.end() + _NEXT // 10)
            news = not (ignored or chained or _REPEATED.search(line))
            kind: Literal["exception", "no news"] = "exception" if news else "no news"
            return TracebackEnd(match.start(1), match.end(), kind, frames_in(data, after, match.start()))
    if after + AHEAD > len(data) > after:
        stop = len(data.rstrip(b" \t\r\n~^"))
        begin = data.rfind(b"\n", 0, stop) + 1
    return TracebackEnd(begin, stop, "no news" if ignored else "cut", frames_in(data, after, stop))


def exception_below(data: bytes, above: TracebackEnd) -> TracebackEnd:
    """The exception in the line below another one, whose frames it shares; no news where there is none."""
    begin = data.find(b"\n", above.end) + 1
    end = data.find(b"\n", begin) if begin else -1
    line = data[begin:end].decode(errors="replace") if end > begin else ""
    if not names_exception(line):
        return above._replace(kind="no news")
    return TracebackEnd(begin, end, "no news" if _REPEATED.search(line) else "exception", above.frames)


def _prefix_of_frames(data: bytes, header: bytes, after: int) -> bytes:
    """What stands before the indentation of the frames: as in the header's line, but a logger marks only that one."""
    own = _lines(header, rb"( *)  File \"").search(data, after, after + _NEXT)
    if own:
        return header + own[1]
    frame = _lines(b"", rb"([^\r\n]*?)  File \"").search(data, after, after + _NEXT)
    if frame:
        return frame[1]
    return header if header and data.find(b"\n" + header, after - 1, after + _NEXT) >= 0 else b""


def frames_in(data: bytes, begin: int, end: int) -> tuple[str, ...]:
    """The files and lines of the calls that stand between two places, as `FILE:LINE`, the deepest last."""
    return tuple(f"{file.decode(errors='replace')}:{int(line)}" for file, line in _FRAME.findall(data, begin, end))


@lru_cache(maxsize=256)
def _lines(prefix: bytes, rest: bytes) -> re.Pattern[bytes]:
    """Lines of that prefix, in which time stamps may differ, and `rest` behind it."""
    parts = [re.escape(part) for part in _STAMP.split(prefix)]
    return re.compile(rb"(?:^|(?<=\r))" + STAMP.encode().join(parts) + rest, re.M)
