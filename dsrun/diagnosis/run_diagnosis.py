"""The verdict over a run folder: its event file, its logs, and whether it is still running."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dsrun.diagnosis.classify import OWN, UNKNOWN
from dsrun.diagnosis.diagnose import NONE, RunVerdict, of_logs
from dsrun.diagnosis.log.records import is_exception
from dsrun.diagnosis.rules import CRASHES, LOST_PEER, FailureCause, causes
from dsrun.errors import EXIT_RESUME, UsageError
from dsrun.events import kind_of
from dsrun.findings.finding import Finding, finding_of, text_of
from dsrun.messages import Message, joined
from dsrun.runs.folder import RunFolder, is_run, last_step, who_runs
from dsrun.runs.lock import last_holder
from dsrun.runs.manifest import newest_complete
from dsrun.runs.reader import RunHistory, read_history
from dsrun.runs.records import LedgerRecord, whole
from dsrun.system.files import open_regular

_LOG = re.compile(r".*\.(log|out|err|txt)(\.gz)?")


def of_run(folder: Path, history: RunHistory | None = None) -> RunVerdict:
    """The verdict over a run folder, whose `history` the caller may have read: the last failure of its event file, else
    what the last attempt's logs show.

    A run that goes on has the cause "running", one that ended without writing an end "run_killed". Raises UsageError
    where there is neither a run nor a log. A metrics.jsonl that cannot be read is a finding."""
    if history is None:
        history = read_history(folder, "events") if is_run(folder) else RunHistory(path=folder)
    logs, figures = _last_logs(folder), RunFolder(folder).metrics
    unread = None
    try:
        with open_regular(figures) as stream:
            stream.read(1)
        logs[str(figures)] = figures
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        unread = finding_of("metrics_unreadable", where=str(figures), reason=(error.strerror or str(error)).lower())
    verdict = _of_history(folder, history, logs)
    if history.program:
        verdict = _of_program(verdict, history)
    return verdict if unread is None else replace(verdict, findings=(*verdict.findings, unread))


def _of_history(folder: Path, history: RunHistory, logs: Mapping[str, Path]) -> RunVerdict:
    events = history.events
    if not events and not logs and not is_run(folder):
        raise UsageError(f"{folder} contains no logs yet", fix="give log files, or the --output of a dsrun train")
    # A failure that training came after is over.
    ending = next((each for each in reversed(events) if _is_telling(each)), {})
    kind = kind_of(ending)
    code = whole(ending.get("exit_code")) if kind.over == "finished" else None
    ended_well = kind.over == "finished" and not code
    # Empty files, which ranks without output leave, show nothing.
    written = {name: path for name, path in logs.items() if path.stat().st_size}
    verdict = of_logs(written, exit_code=0 if ended_well or RunFolder(folder).finished.exists() else None, own=True)
    where = str(RunFolder(folder).events)
    # The attempts of a program write into one log: what it shows may be an earlier one's.
    start = next((each for each in reversed(events) if each.get("kind") == "start"), {})
    is_own = not (start.get("program") and start.get("attempt"))
    # While its supervisor ends the ranks of an attempt that has failed, one of them still holds the folder.
    is_failing = kind.is_failure and not kind.final
    if not ended_well and not is_failing and (running := who_runs(folder)):
        return _running(history, running, verdict, where)
    recorded = causes().get(str(ending.get("cause"))) if kind.is_failure else None
    if kind.is_failure and verdict.cause.code == NONE:
        recorded = recorded or causes()[UNKNOWN]
    if kind.over == "stopped" and not (is_own and verdict.cause.code not in (NONE, UNKNOWN, "interrupted")):
        recorded = causes()["interrupted"]
        if not history.program and newest_complete(RunFolder(folder)) is None:
            recorded = replace(recorded, fix=text_of("verdict.starts_anew"))
    if code:
        recorded = causes()["interrupted" if code == EXIT_RESUME else UNKNOWN]
        ending = {**ending, "message": text_of("run_state.exit_code", code=code)}
    if recorded is not None and recorded.code == UNKNOWN and verdict.cause.code not in (NONE, UNKNOWN):
        return verdict  # the supervisor looks at the end of a log only
    if recorded is not None and recorded.code != NONE:
        return _recorded(recorded, ending, verdict, where)
    is_told = kind.is_failure or (is_own and verdict.cause.code != NONE)
    if events and not ended_well and not is_told and not RunFolder(folder).finished.exists():
        return _beside(causes()["run_killed"], _killed(folder), verdict, where)
    return verdict


def _of_program(verdict: RunVerdict, history: RunHistory) -> RunVerdict:
    """The verdict over a program of the user's own, which need not save, nor have the flags of dsrun's training."""
    failure = next((each for each in reversed(history.events) if _is_telling(each)), {})
    first = failure.get("rank")
    if failure.get("cause") == UNKNOWN and verdict.cause.code in LOST_PEER and first not in (None, verdict.rank):
        # The others only lost the rank that the supervisor saw fail.
        verdict = _recorded(causes()[UNKNOWN], failure, verdict, str(RunFolder(history.path).events))
    findings = tuple(replace(each, fix=_fix(each.code, each.fix)) for each in verdict.findings)
    return replace(verdict, fix=_fix(verdict.cause.code, verdict.fix), findings=findings)


def _fix(code: str, fix: str) -> str:
    cause = causes().get(code)
    return cause.other_fix if cause and cause.other_fix and fix == cause.fix else fix


def _is_telling(event: LedgerRecord) -> bool:
    """Whether a run may stand still after this event, or works again."""
    kind = kind_of(event)
    return kind.name != "requeue" and (kind.over != "killed" or kind.name == "training")


def _running(history: RunHistory, who: str, verdict: RunVerdict, where: str) -> RunVerdict:
    silent = [(rank.silent_s, rank.rank, rank.phase) for node in history.nodes for rank in node.ranks if rank.is_silent]
    if not silent:
        return _beside(causes()["running"], who, verdict, where)
    seconds, rank, phase = max(silent)
    text = text_of("run_state.silent", rank=rank, seconds=seconds, phase=phase)
    return _beside(causes()["running_silent"], joined(", ", [text, who]), verdict, where)


def _killed(folder: Path) -> Message:
    named = last_holder(folder)
    gone = text_of("run_state.gone", pid=named.pid, host=named.host)
    ended = joined(", ", [text_of("run_state.no_end"), last_step(folder)])
    why = text_of("run_state.killed_by")
    return joined("; ", [ended, gone, why] if named.pid > 0 else [ended, why])


def _beside(cause: FailureCause, message: str, verdict: RunVerdict, where: str) -> RunVerdict:
    """`cause`, which the logs do not tell, in front of what they do."""
    finding = _finding(cause, message, where)
    others = [replace(each, level="info") if cause.level == "info" else each for each in verdict.findings]
    return replace(
        verdict, cause=cause, rank=None, where=where, evidence=message, likely=False, means=cause.means,
        fix=cause.fix, findings=(finding, *others),
    )  # fmt: skip


def _finding(cause: FailureCause, message: str, where: str) -> Finding:
    text = text_of("verdict.with_line", title=cause.title, line=message)
    return Finding(level=cause.level, code=cause.code, message=text, fix=cause.fix, where=where)


def _recorded(cause: FailureCause, event: Mapping[str, Any], verdict: RunVerdict, events: str) -> RunVerdict:
    """What the supervisor saw itself, with the line of a log where one tells the same."""
    known = verdict.cause.code == cause.code and not (cause.code == UNKNOWN and "exitcode" in verdict.evidence)
    same = known or (cause.code == "deterministic_crash" and _is_unexplained(verdict.cause))
    rank = event.get("rank", verdict.rank)
    told = event.get("message")
    message = told if isinstance(told, str) and told else cause.title
    if cause.code == "rank_killed" and -(whole(event.get("exit_code")) or 0) in CRASHES:
        cause = replace(cause, means=text_of("verdict.crashed"), fix=cause.signs[0].fix)
    # A guess from the logs is no news beside what was seen, nor is the line that is shown.
    others = () if verdict.cause.code == NONE else verdict.findings[1:] if verdict.likely or same else verdict.findings
    news = (each for each in others if not _is_told(each, cause, message))
    return replace(
        verdict, cause=cause, rank=rank if isinstance(rank, int) else None, where=verdict.where if same else events,
        evidence=verdict.evidence if same else message, likely=False, means=cause.means, fix=cause.fix,
        findings=(_finding(cause, message, events), *news),
    )  # fmt: skip


def _is_unexplained(cause: FailureCause) -> bool:
    """Whether no rule knows it."""
    return cause.general or cause.code == UNKNOWN


def _is_told(finding: Finding, cause: FailureCause, message: str) -> bool:
    """Whether a finding that no rule knows, or a line of dsrun's, only repeats the recorded failure, or that a process
    ended."""
    said = message.partition(" (")[0]  # without its fix
    if finding.code == OWN:
        return said in finding.message
    shown = causes().get(finding.code)
    if shown is None or not _is_unexplained(shown) or cause.code == UNKNOWN:
        return False
    evidence = finding.message.removeprefix(f"{shown.title}: ")
    text = evidence.partition(": ")[2]
    return not is_exception(evidence) or said in evidence or (bool(text) and text in message)


def _last_logs(folder: Path) -> dict[str, Path]:
    """The logs of the last attempt: its ranks', the launcher's, the scheduler's."""
    run = RunFolder(folder)
    ranks = run.rank_logs()
    last = max((attempt for _, attempt in ranks.values()), default=0)
    found = sorted((path for path, (_, attempt) in ranks.items() if attempt == last), key=lambda path: ranks[path])
    others = (path for path in sorted(run.logs.glob("*")) if path not in ranks)
    launchers = [path for path in others if path.is_file() and _LOG.fullmatch(path.name)]
    outside = [path for path in folder.glob("*") if path.is_file() and _LOG.fullmatch(path.name)]
    for several in (launchers, [path for path in outside if path != run.console]):
        found += sorted(several, key=lambda path: path.stat().st_mtime)[-1:]
    return {str(path): path for path in found}
