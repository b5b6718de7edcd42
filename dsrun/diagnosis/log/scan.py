"""Finding the signs of failures in a log, and what contradicts them: training that went on, a run that ended well.

All of a log is searched as bytes, for the literal words of all signs at once; only lines with such a word are matched.
"""

import re
from collections import deque
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

import ahocorasick_rs

from dsrun.datafiles import toml_beside
from dsrun.diagnosis.log.normalise import BEFORE, LogForm, RawLines, text_before
from dsrun.diagnosis.log.notation import last_time, rank_of, time_of, without_prefix
from dsrun.diagnosis.log.records import HEADER, end_of_traceback, exception_below, is_exception
from dsrun.diagnosis.rules import CauseSign, FailureCause, causes

# A line is looked at in a window around the word: progress bars make lines of megabytes.
WINDOW = 4000
# Of a longer line only what surrounds the place that matched is shown.
SHOWN = 300
# Healthy steps that are counted after a hit, enough for every question about it; before any, the first shows training.
COUNTED = 100
# Of the log's end, for what no sign finds in it.
TAIL = 1 << 17
# Hits kept of one sign beside the first: the last ones, which may have ended the run.
KEPT = 64

ScanEvent = Literal["step", "end", "again", "own", "traceback", "sign"]
_EVENTS: dict[bytes, ScanEvent] = {
    **{word.encode(): event for event, words in toml_beside(__file__)["events"].items() for word in words},
    HEADER: "traceback",
}
_FINITE = re.compile(rb"['\"]?-?(\d[\d.]*)(?:[eE][-+]?\d+)?")
# Gradients that are not finite make the step a sick one, whatever its loss.
_SICK = re.compile(rb"grad[_ ]norm['\"]?\s*[:=]\s*['\"]?(?:nan|NaN|null)")
_EXCEPTION_WORDS = tuple(
    name + end for name in (b"Error", b"Exception") for end in (b": ", b":\n", b":\r", b"\n", b"\r", b"(")
)
EXCEPTION_SIGN = CauseSign(has=(), weight="unknown")
CUT_SIGN = CauseSign(has=("Traceback",), weight="exit")
# Caught, says the program, which goes on.
RETRIED_SIGN = CauseSign(has=("retry",), weight="unknown", retried=True)
_RETRIED = re.compile(rb"(?i)\bretr(?:y|ying|ied)\b|trying again|falling back|\bskipp(?:ed|ing)\b")
# A traceback quotes the source, and sources hold the very words of their messages.
_SOURCE = re.compile(
    r"^(\[\w+\]:)?(?:\s*(?:raise|except|assert|return|if|elif|def|class|from|import|logger\.\w+\(|print\()\b|\s{4,}f?r?[\"']\S+.*[\"'][,)]*$)"
)
_INDENTED = re.compile(r"^(\[\w+\]:)? {4}")
_FRAME = re.compile(rb'File "[^"]*", line \d+')


@dataclass(frozen=True)
class LogHit:
    """A sign in a log. `line` counts from 1; `attempts`, `ends` and healthy `steps` are those the log told of before.

    `text` is the line, or of a long one what surrounds the place that matched. `said` is its message, without what
    stands before each line of the log. `frames` are those of an exception's traceback, as `FILE:LINE`, the deepest
    last. `rank` is the one that says it; `time` is the last one that the log names, in seconds since 1970."""

    cause: FailureCause
    sign: CauseSign
    line: int
    text: str
    said: str
    frames: tuple[str, ...]
    rank: int | None
    time: float | None
    attempts: int
    ends: int
    steps: int


class _Line(NamedTuple):
    """A line of a piece, from `begin` to `end`; the word it was found by stands at `position` of the piece.

    `below` is what the next lines say of it."""

    text: str
    begin: int
    end: int
    position: int
    frames: tuple[str, ...] = ()
    below: str = ""


class LogScan:
    """Takes a log in pieces of whole lines and collects its hits. `size` is in bytes; `own`: dsrun is named in it.

    `tail` is the end of what was read, without what stands before its messages; `lines` are line breaks so far, and 1.
    """

    def __init__(self) -> None:
        self.attempts = 0
        self.ends = 0
        self.steps = 0
        self._enough = 1
        self.size = 0
        self.own = False
        self.tail = b""
        self._form = LogForm()
        self._raw = RawLines(b"", 1)
        self._raw_before = b""
        self.lines = 1
        self._counted = 0
        self._hits: dict[CauseSign, tuple[LogHit, deque[LogHit]]] = {}
        self._before = b""
        self._ends: set[int] = set()

    @property
    def hits(self) -> list[LogHit]:
        """In the order of the log."""
        found = {id(hit): hit for first, rest in self._hits.values() for hit in (first, *rest)}
        return sorted(found.values(), key=lambda hit: hit.line)

    def feed(self, data: bytes, limit: int | None = None) -> None:
        """The next piece of the log: `data` as far as `limit`; what follows there is fed again, and only helps."""
        size = len(data) if limit is None else limit
        self._raw = RawLines(data, self.lines, self._raw_before)
        self._raw_before = self._raw.end(size)
        self.size += size
        clean = self._form.clean(data[:size])
        data, limit = clean + self._form.clean(data[size:]), len(clean)
        automaton, words = _automaton()
        self._counted = 0
        self._ends.clear()
        returns = b"\r" in data
        tried: dict[int, int] = {}
        stepped = -1
        for index, position, _ in automaton.find_matches_as_indexes(data[: limit + WINDOW], overlapping=True):
            if position >= limit:
                continue
            word, event = words[index]
            if event == "step":
                if self.steps < self._enough:
                    stepped = self._step(data, position + len(word), stepped)
            elif event == "sign":
                if position >= tried.get(index, 0):
                    tried[index] = self._match(data, word, _line(data, position, returns=returns))
            elif event == "traceback":
                self._traceback(data, position)
            elif event == "again":
                self.attempts += 1
            elif event == "end":
                self.ends += 1
            else:
                self.own = True
        self._count(data, limit)
        self.tail = (self.tail + clean[-TAIL:])[-TAIL:]
        self._before = (self._before + data[:limit][-BEFORE:])[-BEFORE:]

    def _count(self, data: bytes, position: int) -> None:
        if position > self._counted:
            self.lines += data.count(b"\n", self._counted, position)
            self._counted = position

    def _step(self, data: bytes, position: int, stepped: int) -> int:
        """Counts a healthy step, one per line: `stepped` is the place of the last one, the answer that of this one."""
        found = _FINITE.match(data, position, position + 40)
        # A loss of 0 is what the Trainer logs for NaN.
        if found is None or not found[1].strip(b"0."):
            return stepped
        if stepped >= 0 and data.find(b"\n", stepped, position) < 0 and data.find(b"\r", stepped, position) < 0:
            return stepped
        end = data.find(b"\n", position, position + WINDOW)
        if not _SICK.search(data, max(position - 200, stepped, 0), end if end >= 0 else position + WINDOW):
            self.steps += 1
        return position

    def _match(self, data: bytes, word: bytes, line: _Line) -> int:
        """Every sign with `word`, tried on `line`; the end of what was looked at."""

        def before() -> str:
            return text_before(self._before, data, line.begin).decode(errors="replace")

        for cause, sign in _signs().get(word, ()):
            place = sign.place_in(line.text, before)
            if place is not None and not _quoted(data, line):
                self._add(data, line, cause, sign, place)
        bare = word in _EXCEPTION_WORDS and line.begin not in self._ends
        if bare and is_exception(line.text) and not _quoted(data, line):
            self._exception(data, line)
        return line.end

    def _traceback(self, data: bytes, position: int) -> None:
        end = end_of_traceback(data, position)
        while end.begin in self._ends and end.kind == "exception":
            # Where lines of ranks alternate, that is another rank's exception, and this one's may stand below it.
            end = exception_below(data, end)
        self._ends.add(end.begin)
        text = data[end.begin : end.end].decode(errors="replace").strip("\0\r\n")
        line = _Line(text, end.begin, end.end, position, end.frames)
        if end.kind == "exception":
            self._exception(data, line)
        elif end.kind == "cut":
            self._add(data, line, causes()["unknown"], CUT_SIGN)

    def _exception(self, data: bytes, line: _Line) -> None:
        around = max(line.begin - WINDOW // 8, 0), line.end + WINDOW // 8
        sign = RETRIED_SIGN if _RETRIED.search(data, *around) else EXCEPTION_SIGN
        if line.text.rstrip().endswith(":"):
            line = line._replace(below=f" {_text_below(data, line.end)}")
        self._add(data, line, causes()["unknown"], sign)

    def _add(self, data: bytes, line: _Line, cause: FailureCause, sign: CauseSign, place: int = 0) -> None:
        known = self._hits.get(sign)
        last = known and (known[1][-1] if known[1] else known[0])
        if last and sign.lasting and (last.steps, last.attempts) == (self.steps, self.attempts):
            return  # of losses that stay NaN only the first one counts
        self._count(data, min(line.begin, line.position))
        number = self.lines + data.count(b"\n", self._counted, line.begin)
        if last and last.line == number:
            return
        raw = self._raw.line(number, line.text).rstrip() + line.below
        said = line.text.rstrip() + line.below
        hit = LogHit(
            cause, sign, number, excerpt(raw, max(len(raw) - len(said), 0) + place), said, line.frames,
            rank_of(raw), self._time(raw, number, known), self.attempts, self.ends, self.steps,
        )  # fmt: skip
        self._enough = self.steps + COUNTED
        if known:
            known[1].append(hit)
        else:
            self._hits[sign] = hit, deque(maxlen=KEPT)

    def _time(self, raw: str, number: int, known: tuple[LogHit, deque[LogHit]] | None) -> float | None:
        time = time_of(raw)
        if time is None and (known is None or len(known[1]) < KEPT):
            time = last_time(self._raw.before(number).decode(errors="replace"))
        return time


def excerpt(line: str, place: int) -> str:
    """`line`, or where that is long the `SHOWN` characters around `place`."""
    line = line.rstrip()
    lead = len(line) - len(line.lstrip())
    line, place = line[lead:], max(place - lead, 0)
    if len(line) <= SHOWN:
        return line
    begin = max(min(place - SHOWN // 3, len(line) - SHOWN), 0)
    end = begin + SHOWN
    return ("…" if begin else "") + line[begin:end] + ("…" if end < len(line) else "")


def _line(data: bytes, position: int, *, returns: bool) -> _Line:
    """The line around `position`; `returns`: there are carriage returns, which end a line too."""
    begin = max(data.rfind(b"\n", max(position - WINDOW, 0), position) + 1, position - WINDOW, 0)
    stop = data.find(b"\n", position, position + WINDOW)
    stop = min(position + WINDOW, len(data)) if stop < 0 else stop
    if returns:
        begin = max(begin, data.rfind(b"\r", begin, position) + 1)
        end = data.find(b"\r", position, stop)
        stop = stop if end < 0 else end
    return _Line(data[begin:stop].decode(errors="replace").strip("\0\n"), begin, stop, position)


def _quoted(data: bytes, line: _Line) -> bool:
    """Whether a line is the source that a traceback quotes."""
    before = data.rfind(b"\n", max(line.begin - WINDOW, 0), max(line.begin - 1, 0)) + 1
    return bool(_SOURCE.match(line.text) or (_INDENTED.match(line.text) and _FRAME.search(data, before, line.begin)))


def _text_below(data: bytes, position: int) -> str:
    """What the first lines behind a place say: some messages begin with a line break."""
    below = data[position : position + SHOWN].decode(errors="replace").splitlines()
    return next((text for line in below if (text := without_prefix(line).strip())), "")


@cache
def _signs() -> dict[bytes, list[tuple[FailureCause, CauseSign]]]:
    """All signs by their literal words."""
    found: dict[bytes, list[tuple[FailureCause, CauseSign]]] = {}
    for cause in causes().values():
        for sign in cause.signs:
            for word in sign.has:
                found.setdefault(word.encode(), []).append((cause, sign))
    return found


@cache
def _automaton() -> tuple[ahocorasick_rs.BytesAhoCorasick, list[tuple[bytes, ScanEvent]]]:
    """One search for all words, and what each of them stands for."""
    signs: dict[bytes, ScanEvent] = dict.fromkeys((*_signs(), *_EXCEPTION_WORDS), "sign")
    words = list((signs | _EVENTS).items())
    dfa = ahocorasick_rs.Implementation.DFA
    return ahocorasick_rs.BytesAhoCorasick([word for word, _ in words], implementation=dfa), words
