"""Which folders are runs, and whether somebody runs there: by the lock, or where that cannot be seen, by the files."""

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from dsrun.events import kind_of
from dsrun.findings.finding import text_of
from dsrun.messages import Message, joined
from dsrun.refusals import Refusals
from dsrun.runs.folder import RunFolder
from dsrun.runs.lock import LOCK_TRIES, is_in_use, last_holder
from dsrun.runs.node_status import FOLDER as STATUS
from dsrun.runs.tail import last_record, progress
from dsrun.system import host

# A run of another machine whose lock cannot be seen here counts as running if it wrote something so recently.
_RECENTLY_S = 300.0
STALE_S = 30.0
"""A node's status is written every five seconds, every 15 on hundreds of nodes; of a run that has told its end it is
the only thing that may still be written."""
_JUST_NOW_S = 10.0


def is_run(folder: Path) -> bool:
    """Whether `folder` is the run folder of a dsrun train or launch."""
    run = RunFolder(folder)
    marks = (run.run_json, run.events, run.recipe, run.lock, run.supervisor_lock, folder / STATUS / "node-0.json")
    with suppress(PermissionError):  # a colleague's own folder among those of a shared file system
        return any(mark.is_file() for mark in marks)
    return False


def refuse_without_run(path: Path) -> None:
    """Raise UsageError unless a run has at least begun to start in `path`."""
    if not is_run(path):
        what = "contains no run" if path.is_dir() else "is not a folder" if path.exists() else "does not exist"
        Refusals(__file__, "refusals.toml").check(
            "no_run", path=path, what=what, below=" ".join(map(str, runs_below(path)[:3]))
        )


def runs_below(folder: Path) -> list[Path]:
    """The run folders in `folder` and in its sub-folders."""
    return sorted(path for depth in ("*", "*/*") for path in folder.glob(depth) if path.is_dir() and is_run(path))


def newest_of(runs: Iterable[Path]) -> Path:
    """The run that was written to last."""
    return max(runs, key=lambda run: last_write(run) or 0.0)


def who_runs(folder: Path, *, tries: int = LOCK_TRIES) -> str:
    """Who runs there, in words; "" for no one. `tries` as in `is_in_use`."""
    holder = is_in_use(folder, tries=tries)
    if holder is not None:
        return joined(", ", [text_of("run_state.runs", holder=str(holder)), last_step(folder)])
    named = last_holder(folder)
    if named.pid <= 0 or named.host == host.hostname():
        return ""
    written, status = last_write(folder), changed((folder / STATUS).glob("node-*.json"))
    silent = max(0.0, time.time() - max(written or 0.0, status or 0.0))
    has_ended = kind_of(last_record(RunFolder(folder).events)).final
    if silent < (STALE_S if status and has_ended else _RECENTLY_S):
        wrote = text_of("run_state.wrote", holder=str(named), seconds=silent)
        return joined(", ", [wrote, last_step(folder)])
    return ""


def last_step(folder: Path) -> Message:
    """The last step that the run has logged, in words."""
    last = progress(RunFolder(folder).metrics)
    if last is None or last.step is None:
        return text_of("run_state.no_step")
    return text_of("run_state.step", step=last.step, time=last.time)


def last_write(folder: Path) -> float | None:
    """When what a run writes last changed, in seconds since the epoch; None where there is nothing."""
    written = changed(folder.glob("*.jsonl"))
    if written is not None and time.time() - written < _JUST_NOW_S:
        return written  # a thousand ranks' logs tell no more, and take a parallel file system a second
    return max((at for at in (written, changed(folder.glob("logs/**/*.log"))) if at is not None), default=None)


def changed(files: Iterable[Path]) -> float | None:
    """When the newest of these files or folders was changed, in seconds since the epoch; None where there is none."""
    times = []
    for path in files:
        with suppress(OSError):  # it may have been moved aside meanwhile
            times.append(path.stat().st_mtime)
    return max(times, default=None)
