"""Why a run stopped: the verdict over the logs of one attempt, or over a run folder with its event file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsrun.diagnosis.classify import Diagnosis, diagnosis, root, scan_log
from dsrun.diagnosis.rules import Cause, causes
from dsrun.errors import UsageError
from dsrun.findings import Finding
from dsrun.runs.folder import RANK_LOG, RunFolder
from dsrun.runs.records import read_records

NONE = "none"
UNKNOWN = "unknown"
SHOWN = 300

_LOG = re.compile(r".*\.(log|out|err|txt)(\.gz)?")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Why a run stopped. `cause` is "none" for a healthy one and "unknown" where no rule knows the failure.

    `rank` failed first; `where` and `evidence` are the line that tells it; `findings` begin with the cause itself, then
    what else was found, as a consequence or beside it. `logs` were looked at.
    """

    cause: Cause
    rank: int | None
    where: str
    evidence: str
    findings: tuple[Finding, ...]
    logs: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The verdict as plain JSON values."""
        return {
            "cause": self.cause.code,
            "rank": self.rank,
            "title": self.cause.title,
            "where": self.where,
            "evidence": self.evidence,
            "findings": [finding.as_dict() for finding in self.findings],
        }


def of_logs(logs: Mapping[str, Path | bytes], *, exit_code: int | None = None) -> Verdict:
    """The verdict over logs by name: a file each, or the content itself. Raises UsageError for one that cannot be read.

    `exit_code` is the run's, where it is known.
    """
    scanned = ((name, diagnosis(*scan_log(log, name), exit_code=exit_code)) for name, log in logs.items())
    found = {name: why for name, why in scanned if why}
    first = root(found)
    if first is None:
        return Verdict(cause=causes()[NONE], rank=None, where="", evidence="", findings=(), logs=tuple(logs))
    name, why = first
    rank_log = RANK_LOG.fullmatch(Path(name).name)
    others: dict[str, Finding] = {}
    for log_name, other in found.items():
        if other.cause != why.cause:
            others.setdefault(other.cause, _finding(other, log_name, beside=True))
    return Verdict(
        cause=_cause(why),
        rank=int(rank_log[1]) if why.rank is None and rank_log else why.rank,
        where=_where(name, why),
        evidence=why.evidence[:SHOWN],
        findings=(_finding(why, name), *others.values()),
        logs=tuple(logs),
    )


def of_run(folder: Path) -> Verdict:
    """The verdict over a run folder: the last failure of its event file, else what the last attempt's logs show.

    Raises UsageError where there is neither an event file nor a log.
    """
    events = read_records(folder / "events.jsonl")
    logs = _last_logs(folder)
    if not events and not logs:
        raise UsageError(f"{folder} contains no logs", fix="give log files, or the --output of a dsrun train")
    # A failure that training came after is over.
    last = [event for event in events if event.get("kind") in ("failure", "training", "end", "signal")]
    ending: Mapping[str, Any] = last[-1] if last else {}
    ended_well = ending.get("kind") == "end" and not ending.get("exit_code")
    verdict = of_logs(logs, exit_code=0 if ended_well else None)
    recorded = causes().get(str(ending.get("cause"))) if ending.get("kind") == "failure" else None
    if ending.get("kind") == "signal" and verdict.cause.code in (NONE, UNKNOWN):
        recorded = causes()["interrupted"]
    if recorded is None or recorded.code == NONE:
        return verdict
    return _recorded(recorded, ending, verdict, f"{folder / 'events.jsonl'}")


def _recorded(cause: Cause, event: Mapping[str, Any], verdict: Verdict, events: str) -> Verdict:
    """What the supervisor saw itself, with the line of a log where one tells the same."""
    same = verdict.cause.code == cause.code
    rank = event.get("rank", verdict.rank)
    message = str(event.get("message") or cause.title)
    finding = Finding(
        level=cause.level, code=cause.code, message=f"{cause.title}: {message}", fix=cause.fix, where=events
    )
    healthy = verdict.cause.code == NONE
    return Verdict(
        cause=cause,
        rank=rank if isinstance(rank, int) else None,
        where=verdict.where if same else events,
        evidence=verdict.evidence if same else message,
        findings=(finding, *(() if healthy else verdict.findings)),
        logs=verdict.logs,
    )


def _last_logs(folder: Path) -> dict[str, Path]:
    """The logs of the last attempt: its ranks', the launcher's, the scheduler's, and the logged figures."""
    run = RunFolder(folder)
    ranks = run.rank_logs()
    last = max((attempt for _, attempt in ranks.values()), default=0)
    found = sorted((path for path, (_, attempt) in ranks.items() if attempt == last), key=lambda path: ranks[path])
    others = (path for path in sorted(run.logs.glob("*")) if path not in ranks)
    launchers = [path for path in others if path.is_file() and _LOG.fullmatch(path.name)]
    outside = [path for path in folder.glob("*") if path.is_file() and _LOG.fullmatch(path.name)]
    for several in (launchers, [path for path in outside if path.name != "console.log"]):
        found += sorted(several, key=lambda path: path.stat().st_mtime)[-1:]
    figures = folder / "metrics.jsonl"
    found += [figures] if figures.is_file() else []
    return {str(path): path for path in found}


def _cause(why: Diagnosis) -> Cause:
    return causes()[why.cause or UNKNOWN]


def _finding(why: Diagnosis, name: str, *, beside: bool = False) -> Finding:
    cause = _cause(why)
    return Finding(
        level="info" if beside else cause.level,
        code=cause.code,
        message=f"{cause.title}: {why.evidence[:SHOWN]}",
        fix=cause.fix,
        where=_where(name, why),
    )


def _where(name: str, why: Diagnosis) -> str:
    return f"{name}:{why.line}" if why.line else name
