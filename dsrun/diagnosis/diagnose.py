"""Why a run stopped: the verdict over the logs of one attempt, or over a run folder with its ledger."""

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
    """The verdict over logs by name: a file each, or the content itself. UsageError where one cannot be read.

    `exit_code` is the run's, where it is known.
    """
    found = {}
    for name, log in logs.items():
        told = diagnosis(*scan_log(log, name), exit_code=exit_code)
        if told:
            found[name] = told
    first = root(found)
    if first is None:
        return Verdict(cause=causes()[NONE], rank=None, where="", evidence="", findings=(), logs=tuple(logs))
    name, told = first
    others = _others(found, name)
    rank = told.rank if told.rank is not None else _rank_of(name)
    cause = _cause(told)
    return Verdict(
        cause=cause,
        rank=rank,
        where=_where(name, told),
        evidence=told.evidence[:SHOWN],
        findings=(_finding(told, name), *others),
        logs=tuple(logs),
    )


def of_run(folder: Path) -> Verdict:
    """The verdict over a run folder: what its ledger says of the last failure, else what the last attempt's logs tell.

    Raises UsageError where there is neither a ledger nor a log.
    """
    events = read_records(folder / "events.jsonl")
    logs = _last_logs(folder)
    if not events and not logs:
        raise UsageError(f"{folder} holds no logs", fix="give log files, or the --output of a dsrun train")
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


def _recorded(cause: Cause, event: Mapping[str, Any], verdict: Verdict, ledger: str) -> Verdict:
    """What the supervisor saw itself, with the line of a log where one tells the same."""
    same = verdict.cause.code == cause.code
    rank = event.get("rank", verdict.rank)
    message = str(event.get("message") or cause.title)
    finding = Finding(
        level=cause.level, code=cause.code, message=f"{cause.title}: {message}", fix=cause.fix, where=ledger
    )
    healthy = verdict.cause.code == NONE
    return Verdict(
        cause=cause,
        rank=rank if isinstance(rank, int) else None,
        where=verdict.where if same else ledger,
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


def _others(found: Mapping[str, Diagnosis], first: str) -> list[Finding]:
    """What the other logs tell, each cause once."""
    seen = {found[first].cause: None}
    others = []
    for name, told in found.items():
        if told.cause not in seen:
            seen[told.cause] = None
            others.append(_finding(told, name, beside=True))
    return others


def _cause(told: Diagnosis) -> Cause:
    return causes()[told.cause or UNKNOWN]


def _finding(told: Diagnosis, name: str, *, beside: bool = False) -> Finding:
    cause = _cause(told)
    return Finding(
        level="info" if beside else cause.level,
        code=cause.code,
        message=f"{cause.title}: {told.evidence[:SHOWN]}",
        fix=cause.fix,
        where=_where(name, told),
    )


def _where(name: str, told: Diagnosis) -> str:
    return f"{name}:{told.line}" if told.line else name


def _rank_of(name: str) -> int | None:
    match = RANK_LOG.fullmatch(Path(name).name)
    return int(match[1]) if match else None
