"""Why a run failed, from its logs of any size: the root cause, not what other ranks suffered from it."""

from __future__ import annotations

import gzip
import io
import math
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, get_args

from dsrun.diagnosis.rules import Cause, Weight, cause_named
from dsrun.diagnosis.scan import Hit, Scan, first_rank, rank_of
from dsrun.errors import UsageError

CHUNK = 4 << 20
LONGEST = 4 << 20
# Of a larger log only so much is read closely: what went wrong first stands at its beginning, and what ended it at its
# end. 32 MiB take some seconds.
HEAD = 8 << 20
TAIL = 24 << 20
# The table of torch.distributed.run is the last thing in a launcher's log.
TABLE = 20_000


def scan_text(text: str) -> tuple[Scan, int | None]:
    """As `scan_stream`, of a text."""
    return scan_stream(io.BytesIO(text.encode(errors="replace")))


def scan_log(log: Path | bytes, name: str) -> tuple[Scan, int | None]:
    """As `scan_stream`, of a file, which may be a pipe, or of a content; also of one that gzip compressed.

    Raises UsageError where it cannot be read, with the log's name.
    """
    try:
        with log.open("rb") if isinstance(log, Path) else io.BufferedReader(io.BytesIO(log)) as stream:
            packed = stream.peek(2)[:2] == b"\x1f\x8b"
            return scan_stream(gzip.open(stream) if packed else stream)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def scan_stream(stream: BinaryIO | gzip.GzipFile) -> tuple[Scan, int | None]:
    """The scanned log, and the first rank to fail where the log ends with the launcher's table of them."""
    scan, read, held = Scan(), 0, 0
    waiting: deque[bytes] = deque()
    end = b""
    for chunk in _pieces(stream):
        end = (end + chunk[-TABLE:])[-TABLE:]
        if read < HEAD:
            scan.feed(chunk)
        else:
            waiting.append(chunk)
            held += len(chunk)
        read += len(chunk)
        while held > TAIL:
            oldest = waiting.popleft()
            held -= len(oldest)
            scan.skip(oldest.count(b"\n"))
    for chunk in waiting:
        scan.feed(chunk)
    return scan, first_rank(end.decode(errors="replace"))


def _pieces(stream: BinaryIO | gzip.GzipFile) -> Iterator[bytes]:
    """The stream in pieces that end with a line; a line of megabytes is cut anywhere."""
    rest = b""
    while data := stream.read(CHUNK):
        whole, newline, rest = (rest + data).rpartition(b"\n")
        if whole or newline:
            yield whole + newline
        if len(rest) > LONGEST:
            yield rest
            rest = b""
    if rest:
        yield rest


# Logged steps after which a run has got over what it complained of.
SURVIVED = 10
# An exception that so many lines follow did not end the run.
LAST_LINES = 400
_ORDER = get_args(Weight)
# What a process's own end tells when no log does.
_SIGNALS = {4: "illegal_instruction", 7: "cpu_shm_bus_error", 9: "rank_killed", 11: "rank_killed"}


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Why a run failed. `evidence` is the line that tells, `line` its number from 1, 0 for an exit code.

    `weight` says how sure that is: a root cause, words that several causes share, a guess, or a consequence of
    another rank's failure. `rank` is the first rank that failed, and `time` when (see `scan.time_of`), as far as
    the log tells.
    """

    cause: str
    evidence: str
    line: int
    transient: bool
    weight: Weight
    rank: int | None
    time: float | None


def classify(text: str, *, exit_code: int | None = None) -> Diagnosis | None:
    """The cause that `text`, a log, shows; None for a healthy one, or where no rule knows the failure.

    `exit_code` is the process's, where the caller has it: 0 leaves only what spoils a run without ending it (a NaN
    loss), and a signal tells its own where the text tells nothing.
    """
    scan, rank = scan_text(text)
    found = diagnosis(scan, rank, exit_code=exit_code)
    return found if found and found.cause else None


def root(found: Mapping[str, Diagnosis]) -> tuple[str, Diagnosis] | None:
    """The one of many logs' diagnoses that explains the others: a cause before a consequence, the earliest first."""
    order = {name: place for place, name in enumerate(found)}

    def urgency(item: tuple[str, Diagnosis]) -> tuple[int, float, int]:
        name, why = item
        return _ORDER.index(why.weight), math.inf if why.time is None else why.time, order[name]

    return min(found.items(), key=urgency, default=None)


def diagnosis(scan: Scan, rank: int | None = None, *, exit_code: int | None = None) -> Diagnosis | None:
    """What a scanned log shows; the cause is "" for an exception at its end that no rule knows.

    `rank` is the first to fail where the log has a table of them.
    """
    hits = [hit for hit in scan.hits if not _survived(hit, scan, exit_code)]
    last = max((hit.attempts for hit in hits), default=0)
    known = {hit.line for hit in hits if hit.sign.weight != "unknown"}
    hits = [hit for hit in hits if hit.attempts == last and (hit.cause.code or hit.line not in known)]
    if not hits:
        return _by_signal(exit_code, rank)
    best = min(hits, key=lambda hit: (_ORDER.index(hit.sign.weight), hit.line))
    named = rank_of(best.text)
    return _diagnosis(best.cause, best, rank if named is None else named)


def _survived(hit: Hit, scan: Scan, exit_code: int | None) -> bool:
    """Whether the run got over it: many healthy steps later, or the end of training, and no sign that lasts."""
    if scan.steps - hit.steps >= SURVIVED:
        return True
    if hit.sign.weight == "unknown" and scan.lines - hit.line > LAST_LINES:
        return True
    return not hit.sign.lasting and (exit_code == 0 or scan.ends > hit.ends)


def _by_signal(exit_code: int | None, rank: int | None) -> Diagnosis | None:
    if exit_code is None:
        return None
    signal = -exit_code if exit_code < 0 else exit_code - 128
    code = _SIGNALS.get(signal)
    return _diagnosis(cause_named(code), exit_code, rank) if code else None


def _diagnosis(cause: Cause, evidence: Hit | int, rank: int | None) -> Diagnosis:
    hit = evidence if isinstance(evidence, Hit) else None
    return Diagnosis(
        cause=cause.code,
        evidence=hit.text if hit else f"exit code {evidence}",
        line=hit.line if hit else 0,
        transient=cause.transient,
        weight=hit.sign.weight if hit else "guess",
        rank=rank,
        time=hit.time if hit else None,
    )
