"""Why a run stopped: the verdict over the logs of one attempt, or over a run folder with its event file."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsrun.diagnosis.candidates import Candidate, LogLine, ReadLog, candidates_of
from dsrun.diagnosis.classify import Diagnosis, ScannedLog, diagnoses, excerpt_of, recovered, root, scan_log
from dsrun.diagnosis.log.notation import rank_behind
from dsrun.diagnosis.log.reading import NotText
from dsrun.diagnosis.log.records import is_table
from dsrun.diagnosis.rules import FailureCause, causes
from dsrun.findings.finding import Finding, has_errors, text_of
from dsrun.runs.folder import RANK_LOG

NONE = "none"
NO_END = "no_end"
# But not one of another program: docker run --shm-size=8g, sbatch --mem.
_FLAG = re.compile(r"(?:docker run|sbatch|srun) --\S+|(--[a-z][a-z0-9-]*)")


@dataclass(frozen=True, kw_only=True)
class RunVerdict:
    """Why a run stopped. `cause` is "none" where no sign of a failure is known and "unknown" where no rule knows it.

    `rank` failed first; `where` and `evidence` are the line that tells it; `likely`: that line is a guess's; `means`
    and `fix` explain it. `findings` begin with the cause itself, then what else was found, as a consequence or beside
    it. `logs` were read, which are `lines` in all; `trained`: they show a step or the end of training, or the
    run ended well. `excerpt` are the lines that tell most, six at most, `candidates` all that were weighed, and `read`
    the size of each log."""

    cause: FailureCause
    rank: int | None = None
    where: str = ""
    evidence: str = ""
    likely: bool = False
    means: str = ""
    fix: str = ""
    findings: tuple[Finding, ...] = ()
    logs: tuple[str, ...] = ()
    lines: int = 0
    trained: bool = False
    excerpt: tuple[LogLine, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    read: tuple[ReadLog, ...] = ()

    @property
    def failed(self) -> bool:
        return has_errors(self.findings)

    def as_dict(self, *, candidates: bool = False) -> dict[str, Any]:
        return {
            "cause": self.cause.code,
            "likely": self.likely,
            "rank": self.rank,
            "title": self.cause.title,
            "where": self.where,
            "evidence": self.evidence,
            "lines": self.lines,
            "trained": self.trained,
            "excerpt": [line._asdict() for line in self.excerpt],
            **({"candidates": [each._asdict() for each in self.candidates]} if candidates else {}),
            "findings": [finding.as_dict() for finding in self.findings],
        }


def of_logs(logs: Mapping[str, Path | bytes], *, exit_code: int | None = None, own: bool = False) -> RunVerdict:
    """The verdict over logs by name: a file each, or the content itself, with what it was chosen from.

    `exit_code` is the run's, where it is known; `own`: it was started by dsrun, whose flags then help. Raises
    UsageError for a log that cannot be read or is not text, and where all are empty."""
    scanned = {name: scan_log(log, name) for name, log in logs.items()}
    lines = sum(log.lines for log in scanned.values())
    if scanned and not any(log.scan.lines > 1 or log.scan.size for log in scanned.values()):
        raise NotText(f"{next(iter(scanned))} is empty" if len(scanned) == 1 else "all these logs are empty")
    found = {name: why for name, log in scanned.items() if (why := diagnoses(log, exit_code=exit_code))}
    trained = exit_code == 0 or any(log.scan.steps or log.scan.ends for log in scanned.values())
    own = own or any(log.scan.own for log in scanned.values())
    name = root(found)
    weighed = candidates_of(scanned, found, name, exit_code)
    read = tuple(ReadLog(name, log.lines, log.scan.size) for name, log in scanned.items())
    if name is None:
        over = _over(scanned, own)
        whole = own or trained or any(is_table(log.scan.tail) for log in scanned.values())
        cause = causes()[NONE if whole else NO_END]
        return RunVerdict(
            cause=cause, means=cause.means, fix=cause.fix, findings=over, logs=tuple(scanned), lines=lines,
            trained=trained, candidates=weighed, read=read,
        )  # fmt: skip
    first = _of_all(found, name)
    lines_beside = excerpt_of(scanned[name], first)
    others: dict[str, Finding] = {}
    for log_name, several in found.items():
        for other in several:
            if other.cause.code != first.cause.code and (other.weight != "exit" or log_name != name):
                others.setdefault(other.cause.code, _finding(other, log_name, own=own, level="info"))
    return RunVerdict(
        cause=first.cause, rank=first.rank, where=_where(name, first), evidence=first.evidence,
        likely=first.weight == "guess", means=first.means, fix=_fix(first, own=own),
        findings=(_finding(first, name, own=own), *others.values()), logs=tuple(scanned), lines=lines, trained=trained,
        excerpt=tuple(LogLine(name, *line) for line in lines_beside.items()) if len(lines_beside) > 1 else (),
        candidates=weighed,
        read=read,
    )  # fmt: skip


def _of_all(found: Mapping[str, Sequence[Diagnosis]], name: str) -> Diagnosis:
    """The first diagnosis of log `name`, with the rank that the other logs or its own name tell."""
    why = found[name][0]
    if why.cause.code == "nccl_timeout":
        told = (each for several in found.values() for each in several if each.cause.code == "nccl_timeout")
        return replace(why, rank=rank_behind([line for each in told for line in each.lines]))
    rank_log = RANK_LOG.fullmatch(Path(name).name)
    return replace(why, rank=int(rank_log[1])) if why.rank is None and rank_log else why


def _over(scanned: Mapping[str, ScannedLog], own: bool) -> tuple[Finding, ...]:
    """What a run without a failure got over, but its owner should know."""
    found = ((name, why) for name, log in scanned.items() for why in recovered(log))
    return tuple(
        replace(
            _finding(why, name, own=own, level="warning"), message=text_of("verdict.finite_again", line=why.evidence)
        )
        for name, why in found
    )[:1]


def _finding(why: Diagnosis, name: str, *, own: bool, level: str = "") -> Finding:
    return Finding(
        level=level or why.cause.level,  # type: ignore[arg-type]
        code=why.cause.code,
        message=text_of("verdict.with_line", title=likely(why.cause.title, why.weight == "guess"), line=why.evidence),
        fix=_fix(why, own=own),
        where=_where(name, why),
    )


def likely(title: str, is_guess: bool) -> str:
    """The title of a cause, which says so where it is a guess."""
    return text_of("verdict.likely", title=title) if is_guess else title


def _fix(why: Diagnosis, *, own: bool) -> str:
    """What helps; where another launcher wrote the log, in general, with the flags of dsrun beside it."""
    other = why.cause.other_fix if why.fix == why.cause.fix else ""
    if own or not other:
        return why.fix
    flags = ", ".join(filter(None, _FLAG.findall(why.fix)))
    return text_of("verdict.with_flags", advice=other, flags=flags) if flags else other


def _where(name: str, why: Diagnosis) -> str:
    return f"{name}:{why.line}" if why.line else name
