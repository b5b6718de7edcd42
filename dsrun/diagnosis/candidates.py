"""What a verdict was chosen from: the lines that say something of a failure, and why each of them counts or not."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

from dsrun.diagnosis.classify import UNKNOWN, Diagnosis, HitStanding, JudgedHit, ScannedLog, judged
from dsrun.diagnosis.rules import SignWeight
from dsrun.findings.finding import text_of
from dsrun.messages import Message
from dsrun.runs.folder import RANK_LOG
from dsrun.system.terminal.display import counted

MOST = 200
COUNTS = ("first", "beside")
_ORDER = get_args(SignWeight)


class LogLine(NamedTuple):
    """A line of a log, by its number from 1."""

    log: str
    line: int
    text: str


class ReadLog(NamedTuple):
    """A log that was read: how many lines and, unpacked, bytes it has."""

    log: str
    lines: int
    size: int


class Candidate(NamedTuple):
    """A line that a verdict could rest on; `steps` healthy ones and perhaps the `end` of training come after it."""

    log: str
    line: int
    evidence: str
    cause: str
    weight: SignWeight
    standing: HitStanding
    rank: int | None
    time: float | None
    attempt: int
    steps: int
    end: bool

    @property
    def place(self) -> str:
        return f"{self.log}:{self.line}"


def candidates_of(
    logs: Mapping[str, ScannedLog], found: Mapping[str, Sequence[Diagnosis]], root: str | None, exit_code: int | None
) -> tuple[Candidate, ...]:
    """The candidates of logs by name: those that count in front, of them first the one of the log `root` in whose
    line `found` has its cause; then the others."""
    weighed: dict[tuple[str, int, str, str], Candidate] = {}
    for name, log in logs.items():
        told = {why.line: why for why in found.get(name, ()) if why.line}
        hits = judged(log, exit_code=exit_code)
        known = {each.hit.line for each in hits}
        by_words = (_of_diagnosis(name, why) for line, why in told.items() if line not in known)
        for made in (*by_words, *(_candidate(name, each, log, told.get(each.hit.line)) for each in hits)):
            first = name == root and made.standing == "first" and made.line == found[name][0].line
            standing: HitStanding = "first" if first else "beside" if made.standing == "first" else made.standing
            # Several signs of one cause may stand in a line.
            weighed.setdefault((name, made.line, made.cause, made.weight), made._replace(standing=standing))
    return tuple(sorted(weighed.values(), key=_order)[:MOST])


def _of_diagnosis(name: str, why: Diagnosis) -> Candidate:
    """One that was found by the words of the log's end."""
    return Candidate(
        log=name, line=why.line, evidence=why.evidence, cause=why.cause.code, weight=why.weight, standing="first",
        rank=why.rank, time=why.time, attempt=0, steps=0, end=False,
    )  # fmt: skip


def _candidate(name: str, each: JudgedHit, log: ScannedLog, told: Diagnosis | None) -> Candidate:
    hit, standing = each
    named = RANK_LOG.fullmatch(Path(name).name)
    cause = told.cause if told and hit.cause.code == UNKNOWN and standing in COUNTS else hit.cause
    return Candidate(
        log=name, line=hit.line, evidence=hit.text, cause=cause.code, weight=hit.sign.weight, standing=standing,
        rank=int(named[1]) if hit.rank is None and named else hit.rank, time=hit.time, attempt=hit.attempts,
        steps=log.scan.steps - hit.steps, end=log.scan.ends > hit.ends,
    )  # fmt: skip


def _order(each: Candidate) -> tuple[bool, bool, int, float]:
    if each.standing not in COUNTS:
        return True, True, 0, 0.0
    return False, each.standing != "first", _ORDER.index(each.weight), math.inf if each.time is None else each.time


def reason(of: Candidate, among: Sequence[Candidate]) -> Message:
    """Why a candidate is the verdict, counts less, or does not count."""
    if of.standing == "survived" and not of.end and of.steps:
        return text_of("standing.went_on", steps=counted(of.steps, "step"))
    if of.standing not in COUNTS:
        return text_of(f"standing.{of.standing}")
    first = next((each for each in among if each.standing == "first"), of)
    if of is not first:
        return text_of("standing.lighter" if first.weight != of.weight else "standing.beside")
    equals = [each for each in among if each.standing == "beside" and each.weight == of.weight]
    if not equals:
        return text_of("standing.heavier" if any(each.standing == "beside" for each in among) else "standing.only")
    earlier = any(each.log == of.log and each.line < of.line for each in equals)
    return text_of("standing.first_rank" if earlier else "standing.earliest")
