"""`dsrun diagnose`: why a run stopped, from its logs, or how it ended well."""

import sys
from collections.abc import Mapping
from pathlib import Path

from dsrun.cli.output import print_json, print_line, refuse_file, write_file
from dsrun.diagnosis.candidates import reason
from dsrun.diagnosis.diagnose import NONE, RunVerdict, likely, of_logs
from dsrun.diagnosis.log.reading import by_job, job_of, logs_below, members
from dsrun.diagnosis.run_diagnosis import of_run
from dsrun.errors import EXIT_FINDINGS, UsageError
from dsrun.findings.finding import text_of
from dsrun.findings.show import shown
from dsrun.findings.translation import translated
from dsrun.messages import Message, joined
from dsrun.monitoring.run_status import status_of
from dsrun.runs.folder import RunFolder, is_run, runs_below
from dsrun.runs.reader import read_history
from dsrun.system.terminal.display import counted, duration, figure, padded
from dsrun.system.terminal.stderr import print_note

STDIN = "-"
EXPLAINED = 25
"""Candidates that --explain shows of one job."""
_STATES = ("running", "slurm_waiting")


def diagnose(*, logs: tuple[str, ...], form: str, explain: bool, output: str | None, force: bool) -> int:
    if output is not None:
        refuse_file(Path(output), "-o", force=force)
    verdicts = _verdicts(logs)
    if form == "json":
        found = {name: verdict.as_dict(candidates=explain) for name, verdict in verdicts.items()}
        print_json(next(iter(found.values())) if len(found) == 1 else {"jobs": found})
    else:
        _print_all(verdicts, explain=explain)
    if output is not None:
        from dsrun.report.diagnosis_page import render_diagnosis  # jinja2

        page = render_diagnosis(verdicts)
        write_file(Path(output), page.encode("utf-8", "backslashreplace"), force=force)
    return EXIT_FINDINGS if any(verdict.failed for verdict in verdicts.values()) else 0


def _verdicts(logs: tuple[str, ...]) -> dict[str, RunVerdict]:
    """The verdict on each job or run."""
    folders = [name for name in logs if name != STDIN and Path(name).is_dir()]
    if folders and len(logs) > 1:
        raise UsageError(f"{folders[0]} is a folder, and other logs are given", fix="name one run, or only files")
    if folders:
        return _of_folder(Path(folders[0]))
    jobs: dict[str, dict[str, Path | bytes]] = {}
    for log in dict.fromkeys(logs):
        job = job_of(Path(log)) or ""
        found = {"standard input": _stdin()} if log == STDIN else members(Path(log), log)
        jobs.setdefault(f"job {job}" if job else "", {}).update(found)
    if "" in jobs and len(jobs) > 1:  # logs without a job's number belong to any of them
        jobs = {"": {name: log for several in jobs.values() for name, log in several.items()}}
    return {name: of_logs(several) for name, several in jobs.items()}


def _stdin() -> bytes:
    if sys.stdin is None:
        raise UsageError("standard input is closed", fix="pipe a log into it, or name a file")
    if sys.stdin.isatty():
        print_note("this reads a log from the terminal: paste it, and end it with Ctrl-D on a line of its own")
    return sys.stdin.buffer.read()


def _of_folder(folder: Path) -> dict[str, RunVerdict]:
    runs = runs_below(folder)
    paths = logs_below(folder)
    if is_run(folder) or (not runs and paths and all(path.parent == RunFolder(folder).logs for path in paths)):
        return {str(folder): of_run(folder)}
    verdicts = {str(run): of_run(run) for run in runs}
    others = [path for path in paths if not any(path.is_relative_to(run) for run in runs)]
    for name, several in by_job(others, folder).items():
        logs: dict[str, Path | bytes] = {}
        for path in several:
            logs.update(members(path, str(path)))
        verdicts[name] = of_logs(logs)
    if not verdicts:
        raise UsageError(f"{folder} contains no logs", fix="give log files, or the --output of a dsrun train")
    return verdicts


def _print_all(verdicts: Mapping[str, RunVerdict], *, explain: bool) -> None:
    for place, (name, verdict) in enumerate(verdicts.items()):
        if len(verdicts) > 1:
            if place:
                print_line()
            print_line(name)
        _print(verdict, name)
        if explain:
            _explain(verdict)


def _print(verdict: RunVerdict, name: str) -> None:
    cause, others = verdict.cause, verdict.findings
    rows: list[tuple[str, str]] = []
    if verdict.where or cause.code != NONE:
        title = likely(cause.title, verdict.likely)
        rows = [
            ("state" if cause.code.startswith(_STATES) else "cause", f"{cause.code}: {translated(title)}"),
            ("rank", "" if verdict.rank is None else str(verdict.rank)),
            ("where", verdict.where),
            ("line", verdict.evidence),
            *_excerpt(verdict),
            ("meaning", verdict.means),
            ("fix", verdict.fix),
        ]
        others = others[1:]
    elif name and is_run(Path(name)):
        rows = _ended(Path(name), verdict)
    if not rows:
        print_line(f"{cause.code}: {translated(_none_found(verdict))}")
    rows += [("also", shown(found).text) for found in others]
    for row, value in rows:
        if value:
            label = padded(translated(text_of(f"verdict.{row}")) if row else "", 8)
            print_line(f"{label} {translated(value)}", hang=9)


def _excerpt(verdict: RunVerdict) -> list[tuple[str, str]]:
    """The lines that tell most, where they are more than the one of the verdict."""
    lines = verdict.excerpt
    if all(f"{each.log}:{each.line}" == verdict.where for each in lines):
        return []
    name = "{}:" if len(verdict.logs) > 1 else ""
    texts = (f"{name.format(each.log)}{each.line}: {each.text}" for each in lines)
    return [("" if place else "lines", text) for place, text in enumerate(texts)]


def _explain(verdict: RunVerdict) -> None:
    """Prints what the verdict was chosen from, in its order."""
    found = verdict.candidates
    print_line()
    if verdict.where and not any(each.standing == "first" and each.place == verdict.where for each in found):
        print_line(translated(text_of("verdict.recorded", where=verdict.where)))
    print_line(translated(text_of("verdict.weighed" if found else "verdict.no_candidates")))
    for number, each in enumerate(found[:EXPLAINED], 1):
        place = each.place if len(verdict.logs) > 1 else str(each.line)
        weight, standing = text_of(f"weight.{each.weight}"), reason(each, found)
        print_line(f"{number:<8} {place}: {each.evidence}", hang=9)
        why = text_of("verdict.explained", cause=each.cause, weight=weight, standing=standing)
        print_line(f"{'':8} {translated(why)}", hang=9)
    if len(found) > EXPLAINED:
        print_line(translated(text_of("verdict.more_candidates", count=len(found) - EXPLAINED)))


def _ended(folder: Path, verdict: RunVerdict) -> list[tuple[str, str]]:
    """What is known of a run that no failure has ended; nothing of one whose logs alone are there."""
    history = read_history(folder, "newest")
    status = status_of(history)
    if status.state != "finished":
        return [] if verdict.logs else [("state", text_of("run_state.never_began"))]
    last = history.events[-1] if history.events else {}
    state: list[str] = [text_of("run_state.finished", time=str(last.get("time", "?")))]
    if status.step is not None and status.since_s is not None:
        steps, took = counted(status.step, "step"), duration(status.since_s)
        state.append(text_of("run_state.steps", steps=steps, duration=took))
    again = text_of("run_state.restarts", failures=counted(status.restarts, "failure"))
    state.append(again if status.restarts else text_of("run_state.no_failure"))
    losses: list[str] = [figure(status.loss)] if status.loss is not None else []
    if best := status.best:
        losses.append(text_of("run_state.best", metric=best.metric, value=figure(best.value), step=best.step))
    run, step = RunFolder(folder), status.checkpoint_step
    saved = [run.model, run.adapter, *([run.checkpoint(step)] if step is not None else [])]
    return [
        ("state", joined(", ", state)),
        ("loss", joined("; ", losses)),
        ("saved", ", ".join(str(each) for each in saved if each.is_dir())),
    ]


def _none_found(verdict: RunVerdict) -> Message:
    lines: str = counted(verdict.lines, "line")
    if len(verdict.logs) > 1:
        lines = text_of("verdict.in_logs", lines=lines, logs=counted(len(verdict.logs), "log"))
    parts = [text_of("verdict.no_sign", lines=lines)]
    return joined("; ", parts if verdict.trained else [*parts, text_of("verdict.no_training")])
