"""The exception at the end of a Python traceback, whatever a launcher, a container or a logger writes before each line;
and what the end of a log says in which no sign of a known failure is found: its lines by how much they tell.

Exceptions are recognised by where they stand, because many are not called Error: TimeoutExpired, Unsupported,
BrokenProcessPool, RayTaskError(ValueError).

A line tells by its words and its place: an exception, even without the traceback in front of it or only its frames; a
record of a logger's level, or of a compiler or a shell; words that something failed. What others suffer from a failure
tells least."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

from dsrun.datafiles import patterns_beside, toml_beside
from dsrun.diagnosis.log.notation import STAMP, without_prefix

_KINDS = patterns_beside(__file__, table="kinds")
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
_LED_TO = re.compile(rb"(?:During handling of the above|The above exception was)")
_CALL = re.compile(rb'File "([^"\r\n]+)", line (\d+)')
_END = re.compile(rb"[\r\n]")


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
    of its calls, the deepest last."""

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
    ignored = _IGNORED.encode() in data[data.rfind(b"\n", 0, max(begin - 1, 0)) + 1 : begin]
    prefix = _prefix_of_frames(data, data[begin:position], after)
    begun = 0
    for match in _lines(prefix, rb"(\S[^\r\n]*)").finditer(data, after, after + AHEAD):
        line = match[1].decode(errors="replace")
        begun += line.startswith(HEADER.decode())
        if begun > _MIXED:
            break
        if names_exception(line):
            chained = _LED_TO.search(data, match.end(), match.end() + _NEXT // 10)
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
    return tuple(f"{file.decode(errors='replace')}:{int(line)}" for file, line in _CALL.findall(data, begin, end))


@lru_cache(maxsize=256)
def _lines(prefix: bytes, rest: bytes) -> re.Pattern[bytes]:
    """Lines of that prefix, in which time stamps may differ, and `rest` behind it."""
    parts = [re.escape(part) for part in _STAMP.split(prefix)]
    return re.compile(rb"(?:^|(?<=\r))" + STAMP.encode().join(parts) + rest, re.M)


RecordKind = Literal["exception", "error", "failed", "effect"]
"""What a line tells, the most first."""
_ORDER = get_args(RecordKind)
_EVENTS = toml_beside(__file__, "scan.toml")["events"]
_STEP, _OVER = ("|".join(map(re.escape, _EVENTS[event])) for event in ("step", "end"))
_TRAINED = re.compile(rf"(?:{_STEP})['\"]?-?\d|{_OVER}".encode())
_FRAME = re.compile(r'^\W*File "([^"]+)", line (\d+)')
_CARETS = re.compile(r"[\s~^|│]*$|\s*\[Previous line repeated")
_CHAINED = re.compile(r"During handling of the above|The above exception was the direct")
SHOWN_LINES = 6
_WIDTH = 300
# Lines above an exception among which its last call stands.
_CALL_ABOVE = 8
_NEW = re.compile(r"\[|Traceback|During handling|\d{4}-|[A-Z]+[ :]|=+|-+|\w+: |\{'")
# What the interpreter says of exceptions that end nothing.
_IGNORED = "Exception ignored in"
# A cut log ends within a source line only there.
_LAST = 2
_TRIED = 3
# In a log of training the last step is within so many bytes of its end.
_NEAR = 1 << 12
_TABLE_LINES = 200
_LONGEST = 2000


class LogRecord(NamedTuple):
    """A line that tells something: its number in the log, its message, and the frames above an exception, as
    `FILE:LINE`, the deepest last."""

    line: int
    text: str
    kind: RecordKind
    frames: tuple[str, ...] = ()


def records_of(tail: bytes, last: int) -> list[LogRecord]:
    """The records of `tail`, the end of a log whose last line has the number `last`, that no step of training and no
    end of it came after."""
    near = max(len(tail) - _NEAR, 0)
    ends = [match.end() for match in _TRAINED.finditer(tail, near)] or [
        match.end() for match in _TRAINED.finditer(tail)
    ]
    trained = max(ends, default=0)
    lines = tail[trained:].decode(errors="replace").rstrip("\n").split("\n")
    first = last - tail.count(b"\n", trained)
    last = first + len(lines) - 1
    found: list[LogRecord] = []
    led: list[LogRecord] = []
    frames: list[str] = []
    ignored = False
    for number, text in _parts(lines, first):
        if _IGNORED in text:
            ignored = True
        elif frame := _FRAME.match(text):
            frames.append(f"{frame[1]}:{frame[2]}")
        elif frames and (text.startswith("    ") or _CARETS.match(text)) and not _is_cut(text, last - number):
            continue
        elif kind := _kind(text, below_frames=bool(frames), below=last - number):
            if not (ignored and frames):
                found.append(LogRecord(number, text.strip(), kind, tuple(frames)))
            ignored = ignored and not frames
            frames.clear()
        elif _CHAINED.search(text):
            # The exception above only led to the next one.
            led = [record for record in found if record.kind == "exception"]
            found = [record for record in found if record.kind != "exception"]
        elif text.strip():
            frames.clear()
    # Of a chain that is cut off, what it began with.
    return found if any(record.kind == "exception" for record in found) else sorted([*led, *found])


def is_table(tail: bytes) -> bool:
    """Whether this is what a scheduler prints of jobs or pods, which has no end of its own."""
    return any(_KINDS["table"].search(line) for line in tail.decode(errors="replace").splitlines()[-_TABLE_LINES:])


def decisive(records: Sequence[LogRecord]) -> LogRecord | None:
    """The record that tells most: the first exception or error, else the last words that something failed."""
    for kind in _ORDER:
        of_kind = [record for record in records if record.kind == kind]
        times = Counter(record.text for record in of_kind)
        # What repeats was tried again.
        told = [record for record in of_kind if times[record.text] < _TRIED] or of_kind
        if told:
            return told[0 if kind in ("exception", "error") else -1]
    return None


def excerpt_around(tail: bytes, last: int, told: Sequence[int], records: Sequence[LogRecord]) -> dict[int, str]:
    """At most `SHOWN_LINES` lines of `tail` by their numbers, in its order: those that `told` names, what the first of
    them goes on to say, the call that led to it, and of the `records` those that tell most."""
    lines = dict(zip(range(last, 0, -1), reversed(tail.decode(errors="replace").split("\n")), strict=False))
    first = told[0]
    above = (number for number in range(first - 1, max(first - _CALL_ABOVE, 0), -1))
    calls = [number for number in above if _FRAME.match(lines.get(number, ""))][:1]
    # A line below an exception may belong to its message.
    below = [
        number for number in (first + 1, first + 2) if (text := lines.get(number, "")).strip() and not _NEW.match(text)
    ]
    telling = (record for record in records if record.kind != "effect")
    weighty = sorted(telling, key=lambda record: (_ORDER.index(record.kind), -record.line))
    wanted = [first, *below, *calls, *told[1:], *(record.line for record in weighty)]
    found = [number for number in dict.fromkeys(wanted) if lines.get(number, "").strip()]
    return {number: lines[number].strip().rpartition("\r")[2][:_WIDTH] for number in sorted(found[:SHOWN_LINES])}


def _parts(lines: Sequence[str], first: int) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; a carriage return ends one, too."""
    for number, line in enumerate(lines, first):
        for part in line.split("\r"):
            yield number, part[:_LONGEST]


def _is_cut(text: str, below: int) -> bool:
    """Whether a log ends within this line of source, `below` which there are as many lines."""
    return below < _LAST and bool(_KINDS["raised"].match(text))


def _kind(text: str, *, below_frames: bool, below: int) -> RecordKind | None:
    if not text.strip():
        return None
    if below_frames and names_exception(text.strip()):
        return "effect" if _KINDS["effect"].search(text) else "exception"
    if _KINDS["raised"].match(text):
        return "exception" if _is_cut(text, below) else None
    for kind in ("harmless", "effect", "exception", "error", "quiet", "failed"):
        if _KINDS[kind].search(text):
            return None if kind in ("harmless", "quiet") else kind  # type: ignore[return-value]
    return None
