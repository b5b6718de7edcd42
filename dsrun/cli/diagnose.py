"""`dsrun diagnose`: why a run stopped, from its logs, or how it ended well."""

import sys
from collections.abc import Mapping
from pathlib import Path

from dsrun.cli.options import declared, format_option
from dsrun.cli.output import print_json, print_line
from dsrun.diagnosis.diagnose import RunVerdict, likely, of_logs
from dsrun.diagnosis.log.reading import by_job, job_of, logs_below, members
from dsrun.diagnosis.run_diagnosis import of_run
from dsrun.errors import EXIT_FINDINGS, UsageError
from dsrun.findings.show import shown
from dsrun.findings.texts import text_of
from dsrun.findings.translation import translated
from dsrun.messages import Message, joined
from dsrun.monitoring.run_status import status_of
from dsrun.runs.find import is_run, runs_below
from dsrun.runs.folder import RunFolder
from dsrun.runs.reader import read_history
from dsrun.system.terminal.display import counted, duration, figure, padded

STDIN = "-"


def diagnose(*, logs: tuple[str, ...], form: str) -> int:
    verdicts = _verdicts(logs)
    if form == "json":
        found = {name: verdict.as_dict() for name, verdict in verdicts.items()}
        print_json(next(iter(found.values())) if len(found) == 1 else {"jobs": found})
    else:
        _print_all(verdicts)
    return EXIT_FINDINGS if any(verdict.failed for verdict in verdicts.values()) else 0


def _verdicts(logs: tuple[str, ...]) -> dict[str, RunVerdict]:
    """The verdict on each job or run."""
    folders = [name for name in logs if name != STDIN and Path(name).is_dir()]
    if folders and len(logs) > 1:
        raise UsageError(f"{folders[0]} is a folder, and other logs are given", fix="name one run, or only files")
    if folders:
        return _of_folder(Path(folders[0]))
    jobs: dict[str, dict[str, Path | bytes]] = {}
    for log in logs:
        job = job_of(Path(log)) or ""
        found = {"standard input": sys.stdin.buffer.read()} if log == STDIN else members(Path(log), log)
        jobs.setdefault(f"job {job}" if job else "", {}).update(found)
    if "" in jobs and len(jobs) > 1:  # logs without a job's number belong to any of them
        jobs = {"": {name: log for several in jobs.values() for name, log in several.items()}}
    return {name: of_logs(several) for name, several in jobs.items()}


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


def _print_all(verdicts: Mapping[str, RunVerdict]) -> None:
    for place, (name, verdict) in enumerate(verdicts.items()):
        if len(verdicts) > 1:
            if place:
                print_line()
            print_line(name)
        _print(verdict, name)


def _print(verdict: RunVerdict, name: str) -> None:
    cause, others = verdict.cause, verdict.findings
    rows: list[tuple[str, str]] = []
    if verdict.where:
        title = likely(cause.title, verdict.likely)
        rows = [
            ("state" if cause.code.startswith("running") else "cause", f"{cause.code}: {translated(title)}"),
            ("rank", "" if verdict.rank is None else str(verdict.rank)),
            ("where", verdict.where),
            ("line", verdict.evidence),
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
            print_line(f"{padded(translated(text_of(f'verdict.{row}')), 8)} {translated(value)}", hang=9)


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


command = format_option(declared(__file__, "dsrun.cli.diagnose:diagnose", "diagnose.toml"))
