"""Why a run failed, from its logs of any size: the root cause, not what other ranks suffered from it."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, repeat
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from dsrun.diagnosis.log.notation import rank_behind, rank_of
from dsrun.diagnosis.log.reading import read_log
from dsrun.diagnosis.log.records import LogRecord, RecordKind, decisive, exception_in, excerpt_around, records_of
from dsrun.diagnosis.log.scan import CUT_SIGN, LogHit, LogScan, excerpt
from dsrun.diagnosis.rules import CauseSign, FailureCause, SignWeight, cause_named
from dsrun.diagnosis.taxonomy import LoggedError, general_cause, owner_of

UNKNOWN = "unknown"
OWN = "dsrun_error"
# Logged steps after which a run has got over what it complained of.
SURVIVED = 3
# Kinds of lines that tell more than a weight does.
_TOLD_BETTER: dict[SignWeight, tuple[RecordKind, ...]] = {
    "consequence": ("exception",),
    "exit": ("exception", "error"),
}
# The table of torch.distributed.run is the last thing in a launcher's log.
TABLE = 20_000
_FIRST = re.compile(
    r"Root Cause \(first observed failure\):(?:.|\n){0,300}?\brank\s*:\s*(\d+)(?:.|\n){0,80}?\bexitcode\s*:\s*(-?\d+)"
)
_ORDER = get_args(SignWeight)
_SIGTERM = -15
# What a process's own end tells when no log does.
_SIGNALS = {4: "illegal_instruction", 7: "cpu_shm_bus_error", 9: "rank_killed", 11: "rank_killed"}


HitStanding = Literal["first", "beside", "same_line", "earlier_attempt", "survived"]
"""What became of a hit: it explains the others; it counts beside it; a rule that tells more knows the same line; it is
of an attempt before the last; the run got over it."""


class JudgedHit(NamedTuple):
    """A hit, and whether it counts."""

    hit: LogHit
    standing: HitStanding


class FirstFailure(NamedTuple):
    """The first rank to fail, as torch.distributed.run's table has it; a negative exit code is a signal."""

    rank: int
    exit_code: int


@dataclass(frozen=True, kw_only=True)
class ScannedLog:
    """A log that was read: what it shows, its lines, and the first failure where it ends with a table of them."""

    scan: LogScan
    first: FirstFailure | None = None

    @property
    def lines(self) -> int:
        return self.scan.lines - 1

    @cached_property
    def records(self) -> list[LogRecord]:
        """What the log's end says, by the words of its lines."""
        return records_of(self.scan.tail, self.scan.lines)


def scan_log(log: Path | bytes, name: str) -> ScannedLog:
    """Scans all of a log; see `reading.read_log`, also for the errors."""
    scan = LogScan()
    for data, limit in read_log(log, name):
        scan.feed(data, limit)
    found = _FIRST.findall(scan.tail[-TABLE:].decode(errors="replace"))
    return ScannedLog(scan=scan, first=FirstFailure(*map(int, found[-1])) if found else None)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Why a run failed. `evidence` is the line that tells, `line` its number from 1, 0 for an exit code.

    `weight` says how sure that is: a root cause, words that several causes share, a guess, or a consequence of
    another rank's failure. `rank` is the first rank that failed, and `time` when (see `notation.time_of`), as far as
    the log tells. `said` is the line's message, `frames` an exception's calls as `FILE:LINE`.
    `means` and `fix` are the cause's, or what this sign tells more. `lines` are all of this cause."""

    cause: FailureCause
    evidence: str
    line: int
    weight: SignWeight
    rank: int | None
    time: float | None = None
    said: str = ""
    frames: tuple[str, ...] = ()
    means: str
    fix: str
    lines: tuple[str, ...] = ()


def classify(text: str, *, exit_code: int | None = None) -> Diagnosis | None:
    """The cause that `text`, a log, shows; None for a healthy one, or where no rule knows the failure.

    `exit_code` is the process's, where the caller has it: 0 leaves only what spoils a run without ending it (a NaN
    loss), and a signal tells its own where the text tells nothing."""
    scan = LogScan()
    scan.feed(text.encode(errors="replace"))
    scan.own = False  # the output of a program, where no line is dsrun's
    found = by_rules(ScannedLog(scan=scan), exit_code=exit_code)
    return found[0] if found and found[0].cause.code != UNKNOWN else None


def root(found: Mapping[str, Sequence[Diagnosis]]) -> str | None:
    """Of many logs' diagnoses the log whose first one explains the others: a cause before a consequence, the earliest
    first."""
    order = {name: place for place, name in enumerate(found)}

    def urgency(name: str) -> tuple[bool, int, float, int]:
        why = found[name][0]
        time = math.inf if why.time is None else why.time
        return why.cause.level == "info", _ORDER.index(why.weight), time, order[name]

    return min((name for name in found if found[name]), key=urgency, default=None)


def diagnoses(log: ScannedLog, *, exit_code: int | None = None) -> list[Diagnosis]:
    """What a scanned log shows, each cause once, the one that explains the others first: what rules know, what their
    kinds say of other exceptions, and where there is neither, what the words of the log's end say."""
    found = by_rules(log, exit_code=exit_code)
    if exit_code != 0 and (not found or found[0].weight in _TOLD_BETTER):
        kinds = _TOLD_BETTER[found[0].weight] if found else get_args(RecordKind)
        record = decisive([each for each in log.records if each.kind in kinds])
        if record:
            known = next((each for each in found if each.line == record.line), None)
            found = [known or _of_record(record, log.first), *(each for each in found if each is not known)]
    read = (_read(each, own=log.scan.own) if each.cause.code == UNKNOWN else each for each in found)
    return [_within(each, log) for each in read]


def _within(why: Diagnosis, log: ScannedLog) -> Diagnosis:
    """A failure whose signs are those of another cause in a log of this kind."""
    pattern = why.cause.within
    if not pattern or not re.search(pattern, log.scan.tail.decode(errors="replace")):
        return why
    cause = cause_named(why.cause.within_cause)
    is_own = why.means != why.cause.means
    return replace(why, cause=cause, means=why.means if is_own else cause.means, fix=why.fix if is_own else cause.fix)


def excerpt_of(log: ScannedLog, why: Diagnosis) -> dict[int, str]:
    """The lines of the log's end that tell most beside the one of `why`, by their numbers, at most six in all."""
    beside = (hit.line for hit, standing in judged(log) if standing in ("first", "beside"))
    return excerpt_around(log.scan.tail, log.scan.lines, [why.line, *beside], log.records) if why.line else {}


def _of_record(record: LogRecord, first: FirstFailure | None) -> Diagnosis:
    cause = cause_named(UNKNOWN)
    rank = rank_of(record.text)
    return Diagnosis(
        cause=cause, evidence=excerpt(record.text, 0), said=record.text, frames=record.frames, line=record.line,
        weight="unknown" if record.kind == "exception" else "exit", means=cause.means, fix=cause.fix,
        rank=first.rank if first and rank is None else rank,
    )  # fmt: skip


def _read(why: Diagnosis, *, own: bool) -> Diagnosis:
    """A failure that no rule knows, as the kind of its exception, its words and its place read. The source in which a
    traceback is cut off says nothing."""
    if not why.said:
        return why
    said = exception_in(why.said)
    file = why.frames[-1].rpartition(":")[0] if why.frames else ""
    error = LoggedError(
        type=said.type, message=said.message, owner=owner_of(file) if file else "", frames=why.frames, own=own
    )
    reading = general_cause(error)
    return replace(why, cause=reading.cause, means=reading.means, fix=reading.fix) if reading else why


def by_rules(log: ScannedLog, *, exit_code: int | None = None) -> list[Diagnosis]:
    """What the rules know of a scanned log, and exceptions that they do not know; as `diagnoses`."""
    by_cause: dict[str, list[LogHit]] = {}
    for hit, standing in judged(log, exit_code=exit_code):
        if standing in ("first", "beside"):
            by_cause.setdefault(hit.cause.code, []).append(hit)
    if not by_cause:
        return _by_signal(exit_code, log.first)
    return [_diagnosis(each, log.first) for each in by_cause.values()]


def judged(log: ScannedLog, *, exit_code: int | None = None) -> list[JudgedHit]:
    """Every hit of a scanned log with its standing: those that count in front, the one that explains the others
    first; then the rest in the order of the log."""
    scan = log.scan
    hits = [hit for hit in scan.hits if scan.own or not hit.sign.own]
    over = {id(hit) for hit in hits if survived(hit, scan, exit_code)}
    last = max((hit.attempts for hit in hits if id(hit) not in over), default=0)
    # A rule that knows the same line tells more.
    weights = [(hit.line, hit.sign.weight) for hit in hits if not hit.sign.own and id(hit) not in over]
    known = {line for line, weight in weights if weight not in (UNKNOWN, "exit")}
    named = {line for line, weight in weights if weight in ("root", "general")}

    def standing_of(hit: LogHit) -> HitStanding:
        if id(hit) in over:
            return "survived"
        if hit.attempts != last:
            return "earlier_attempt"
        told = (hit.sign.own and hit.line in named) or (hit.sign.weight == UNKNOWN and hit.line in known)
        return "same_line" if told else "beside"

    found = [JudgedHit(hit, standing_of(hit)) for hit in hits]
    rest = [each for each in found if each.standing != "beside"]
    counting = sorted((hit for hit, standing in found if standing == "beside"), key=_urgency(log.first))
    standings: Iterable[HitStanding] = chain(("first",), repeat("beside"))
    return [*map(JudgedHit, counting, standings), *rest]


def _urgency(first: FirstFailure | None) -> Callable[[LogHit], tuple[bool, int, bool, bool, int, bool]]:
    """The order of hits: how much they say, then of the rank that failed first, then where they stand."""
    killed = first is not None and first.exit_code < 0 and first.exit_code != _SIGTERM

    def urgency(hit: LogHit) -> tuple[bool, int, bool, bool, int, bool]:
        weight, no_failure = hit.sign.weight, hit.cause.level == "info"
        if killed and weight in (UNKNOWN, "consequence"):
            # The others only lost the rank that a signal ended, which its exit code tells.
            return no_failure, len(_ORDER), False, True, hit.line, True
        other = weight == UNKNOWN and first is not None and hit.rank != first.rank
        return no_failure, _ORDER.index(weight), other, hit.sign is not CUT_SIGN, hit.line, not hit.sign.means

    return urgency


def recovered(log: ScannedLog) -> list[Diagnosis]:
    """Of causes that count although a run ends well (a NaN loss), those that this one has got over."""
    hits = [hit for hit in log.scan.hits if hit.sign.lasting and survived(hit, log.scan, None)]
    return [_diagnosis([hit], None) for hit in hits[-1:]]


def survived(hit: LogHit, scan: LogScan, exit_code: int | None) -> bool:
    """Whether the run got over it: healthy steps later, or the end of training.

    Weights that have become NaN stay so: one finite loss shows that they have not. An exception that the program says
    it retries needs no more either."""
    later = scan.steps - hit.steps
    if hit.sign.lasting:
        return later > 0
    over = exit_code == 0 or scan.ends > hit.ends
    return over or later >= (1 if hit.sign.retried else SURVIVED)


def _by_signal(exit_code: int | None, first: FirstFailure | None) -> list[Diagnosis]:
    if exit_code is None:
        return []
    code = _SIGNALS.get(-exit_code if exit_code < 0 else exit_code - 128)
    if not code:
        return []
    cause = cause_named(code)
    rank = first.rank if first else None
    return [
        Diagnosis(
            cause=cause, evidence=f"exit code {exit_code}", line=0, weight="guess", rank=rank, means=cause.means,
            fix=cause.fix,
        )
    ]  # fmt: skip


def _diagnosis(hits: Sequence[LogHit], first: FirstFailure | None) -> Diagnosis:
    """The diagnosis of one cause's hits, the one that counts first."""
    best = hits[0]
    lines = tuple(hit.text for hit in hits)
    rank = best.rank
    if best.cause.code == "nccl_timeout":
        rank = rank_behind(lines)
    if rank is None and first:
        rank = first.rank
    if rank is None:
        rank = next((named for line in lines if (named := rank_of(line)) is not None), None)
    sign: CauseSign = best.sign
    return Diagnosis(
        cause=best.cause,
        evidence=best.text,
        line=best.line,
        weight=sign.weight,
        rank=rank,
        time=best.time,
        said="" if sign is CUT_SIGN and not best.said.lstrip().startswith("raise ") else best.said,
        frames=best.frames,
        means=sign.means or best.cause.means,
        fix=sign.fix or best.cause.fix,
        lines=lines,
    )
