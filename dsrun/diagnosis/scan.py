"""Finding the signs of failures in a log, and what contradicts them: training that went on, a run that ended well.

A log is searched as bytes for the literal words of all signs; only lines with such a word are matched.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial

from dsrun.diagnosis.rules import UNKNOWN, Cause, Sign, causes

# 2026-11-21 11:51:06,123   2026-11-21T11:51:06.123Z
_ISO = re.compile(r"(?<!\d)\d{4}-(\d\d)-(\d\d)[ T_](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
# [E1121 11:51:06.123456789 ProcessGroupNCCL.cpp:607]; older ones write October's first digits only where there are any
_GLOG = re.compile(r"\b[IWEF](\d?\d)(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")
_RANK = re.compile(
    r"\[[Rr]ank ?(\d+)\]"  # [rank1]: of torch's traceback hook, [Rank 1] of ProcessGroupNCCL
    r"|\brank[ :=]+(\d+)\b"
    r"|\bRank (\d+)\]"  # [PG ID 0 PG GUID 0(default_pg) Rank 1]
)
# srun --label
_TASK = re.compile(r"^\s{0,4}(\d{1,5}): ")
_FIRST = re.compile(r"Root Cause \(first observed failure\):(?:.|\n){0,300}?\brank\s*:\s*(\d+)")
_MONTH = 31


def time_of(line: str) -> float | None:
    """Seconds since New Year by the line's last time stamp, every month taken for 31 days; None without one.

    glog writes no year, so the times of one run compare unless it goes over New Year.
    """
    found = [match for form in (_ISO, _GLOG) for match in form.finditer(line)]
    if not found:
        return None
    month, day, hour, minute, second, fraction = max(found, key=lambda match: match.start()).groups()
    days = int(month) * _MONTH + int(day)
    return ((days * 24 + int(hour)) * 60 + int(minute)) * 60 + int(second) + float(f"0.{fraction or 0}")


def last_time(text: str) -> float | None:
    """The last time stamp in `text`, as `time_of`."""
    return next((time for line in reversed(text.splitlines()) if (time := time_of(line)) is not None), None)


def rank_of(line: str) -> int | None:
    """The rank that says this line, or that it is about; None where it names none."""
    match = _RANK.search(line) or _TASK.match(line)
    return int(next(filter(None, match.groups()))) if match else None


def first_rank(text: str) -> int | None:
    """The rank that torch.distributed.run's table names as the first to fail, in the last table of `text`."""
    found = _FIRST.findall(text)
    return int(found[-1]) if found else None


# A line is looked at in a window around the word: progress bars make lines of megabytes.
WINDOW = 4000
BEFORE = 6000
# Hits kept of one sign beside the first: the last ones, which may have ended the run.
KEPT = 64
# Places of one word looked at in a piece of the log, from its beginning and from its end.
PLACES = 32

# A logged step: transformers' dictionaries and dsrun's own line.
_STEP = (b"'loss': ", b'"loss": ', b" tokens/s  ETA ")
# A logged step that is not a sign of health. A line may have both.
_SICK_LOSS = (b"'loss': nan", b"'loss': 'nan'", b'"loss": null', b'"loss": NaN')
_SICK_NORM = (b"'grad_norm': nan", b"'grad_norm': 'nan'", b'"grad_norm": null', b'"grad_norm": NaN')
# The Trainer prints it when it has reached the end of training.
_END = (b"'train_runtime': ", b'"train_runtime": ')
# From here on it is another attempt, say torch.distributed.run and dsrun's supervisor.
_AGAIN = (b"will restart worker group", b"(restart ")
# How a traceback ends; torch.distributed.run's own only repeat that a worker failed.
_EXCEPTION = re.compile(
    r"^(\[\w+\]:? ?)?(?!.*\b(ChildFailedError|SignalException|CalledProcessError)\b)"
    r"[A-Za-z_][\w.]*(Error|Exception)(: |$)"
)
_EXCEPTION_WORDS = (b"Error", b"Exception")
_EXCEPTION_SIGN = Sign(has="", weight="unknown")
# A traceback quotes the source, and sources hold the very words of their messages.
_SOURCE = re.compile(
    r"^(\[\w+\]:)?\s*(?:(?:raise|except|assert|return|if|elif|def|class|from|import|logger\.\w+\(|print\()\b|f?r?[\"']\S+.*[\"'][,)]*$)"
)
_INDENTED = re.compile(r"^(\[\w+\]:)? {4}")
_FRAME = re.compile(rb'File "[^"]*", line \d+')


@dataclass(frozen=True)
class Hit:
    """A sign in a log. `line` counts from 1; `attempts`, `ends` and healthy `steps` are those the log told of before.

    `time` is the last one that the log names, in seconds since some New Year's midnight.
    """

    cause: Cause
    sign: Sign
    line: int
    text: str
    time: float | None
    attempts: int
    ends: int
    steps: int


class Scan:
    """Takes a log in pieces of whole lines and collects its hits."""

    def __init__(self) -> None:
        self.attempts = 0
        self.ends = 0
        self.steps = 0
        self._line = 1
        self._hits: dict[Sign, tuple[Hit, deque[Hit]]] = {}
        self._before = b""

    @property
    def lines(self) -> int:
        """Line breaks so far, and 1."""
        return self._line

    @property
    def hits(self) -> list[Hit]:
        """In the order of the log."""
        found = {id(hit): hit for first, rest in self._hits.values() for hit in (first, *rest)}
        return sorted(found.values(), key=lambda hit: hit.line)

    def skip(self, lines: int) -> None:
        """So many lines of the log are left out here."""
        self._line += lines
        self._before = b""

    def feed(self, chunk: bytes) -> None:
        """The next piece of the log."""
        at = 0
        for position, word in sorted(_spots(chunk)):
            begin = _line(chunk, position)[0]
            if begin > at:
                self._advance(chunk, at, begin)
                at = begin
            if word in _AGAIN:
                self.attempts += 1
            elif word in _END:
                self.ends += 1
            else:
                self._match(chunk, position, word)
        self._advance(chunk, at, len(chunk))
        self._before = (self._before + chunk[-BEFORE:])[-BEFORE:]

    def _advance(self, chunk: bytes, begin: int, end: int) -> None:
        self._line += chunk.count(b"\n", begin, end)
        logged, loss, norm = (
            sum(chunk.count(word, begin, end) for word in markers) for markers in (_STEP, _SICK_LOSS, _SICK_NORM)
        )
        self.steps += max(0, logged - max(loss, norm))

    def _match(self, chunk: bytes, position: int, word: bytes) -> None:
        """Every sign with `word`, tried on the line around `position`."""
        begin, stop = _line(chunk, position)
        line = chunk[begin:stop].decode(errors="replace").strip("\0\n")
        if _quoted(chunk, begin, line):
            return
        text_before = partial(_before, self._before, chunk, begin)
        for cause, sign in _signs().get(word, ()):
            if sign.matches(line, text_before):
                self._add(cause, sign, line.strip(), text_before)
        if word in _EXCEPTION_WORDS and _EXCEPTION.match(line):
            self._add(UNKNOWN, _EXCEPTION_SIGN, line.strip(), text_before)

    def _add(self, cause: Cause, sign: Sign, line: str, before: Callable[[], str]) -> None:
        known = self._hits.get(sign)
        time = time_of(line)
        if time is None and (known is None or len(known[1]) < KEPT):
            time = last_time(before())
        hit = Hit(cause, sign, self._line, line, time, self.attempts, self.ends, self.steps)
        if known:
            known[1].append(hit)
        else:
            self._hits[sign] = hit, deque(maxlen=KEPT)


def _line(chunk: bytes, position: int) -> tuple[int, int]:
    """Begin and end of the line around `position`; a carriage return ends a line too."""
    begin = max(position - WINDOW, 0)
    begin = max(begin, *(chunk.rfind(end, begin, position) + 1 for end in (b"\n", b"\r")))
    stops = (chunk.find(end, position, position + WINDOW) for end in (b"\n", b"\r"))
    return begin, min((at for at in stops if at >= 0), default=position + WINDOW)


def _quoted(chunk: bytes, begin: int, line: str) -> bool:
    """Whether a line is the source that a traceback quotes."""
    before = chunk.rfind(b"\n", max(begin - WINDOW, 0), max(begin - 1, 0)) + 1
    return bool(_SOURCE.match(line) or (_INDENTED.match(line) and _FRAME.search(chunk, before, begin)))


def _before(earlier: bytes, chunk: bytes, end: int) -> str:
    """The text that leads to a place."""
    text = chunk[max(end - BEFORE, 0) : end]
    return (earlier[len(text) :] + text if end < BEFORE else text).decode(errors="replace")


def _spots(chunk: bytes) -> Iterator[tuple[int, bytes]]:
    """Where the signs' words stand; of a word that stands everywhere the first places and the last ones."""
    for word in {*_signs(), *_AGAIN, *_END, *_EXCEPTION_WORDS}:
        position, count = chunk.find(word), 0
        while position >= 0 and count < PLACES:
            yield position, word
            position, count = chunk.find(word, position + len(word)), count + 1
        end, count = len(chunk), 0
        while 0 <= position < end and count < PLACES and (end := chunk.rfind(word, position, end)) >= 0:
            yield end, word
            count += 1


@cache
def _signs() -> Mapping[bytes, list[tuple[Cause, Sign]]]:
    """All signs by their literal words."""
    found: dict[bytes, list[tuple[Cause, Sign]]] = {}
    for cause in causes().values():
        for sign in cause.signs:
            found.setdefault(sign.has.encode(), []).append((cause, sign))
    return found
