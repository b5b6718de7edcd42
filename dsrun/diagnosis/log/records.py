"""What the end of a log says, for logs in which no sign of a known failure is found: its lines by how much they tell.

A line tells by its words and its place: an exception, even without the traceback in front of it or only its frames; a
record of a logger's level, or of a compiler or a shell; words that something failed. What others suffer from a failure
tells least.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, get_args

from dsrun.datafiles import toml_beside
from dsrun.diagnosis.log.tracebacks import names_exception
from dsrun.system.patterns import patterns_beside

RecordKind = Literal["exception", "error", "failed", "effect"]
"""What a line tells, the most first."""
_ORDER = get_args(RecordKind)
_KINDS = patterns_beside(__file__, table="kinds")
_EVENTS = toml_beside(__file__, "scan.toml")["events"]
_STEP, _END = ("|".join(map(re.escape, _EVENTS[event])) for event in ("step", "end"))
_TRAINED = re.compile(rf"(?:{_STEP})['\"]?-?\d|{_END}".encode())
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
