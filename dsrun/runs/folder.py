"""The run folder: its paths, which folders may become one, which are one, and whether somebody runs there: by the lock,
or where that cannot be seen, by the files."""

import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from dsrun.errors import DsrunError
from dsrun.events import kind_of
from dsrun.findings.finding import text_of
from dsrun.messages import Message, joined
from dsrun.refusals import Refusals
from dsrun.runs.lock import (
    LOCK_TRIES,
    SUPERVISOR_LOCK,
    TRAINER_LOCK,
    RunLock,
    in_use,
    is_in_use,
    last_holder,
    trainer_of,
)
from dsrun.runs.node_status import FOLDER as STATUS
from dsrun.runs.tail import last_record, progress
from dsrun.system import host, variables
from dsrun.system.files import nearest_existing

_REFUSALS = Refusals(__file__, "refusals.toml")
# The names that `RunFolder.checkpoint` gives; a checkpoint-0030 is somebody's copy, and would not be found by its step.
_CHECKPOINT = re.compile(r"checkpoint-(0|[1-9][0-9]*)")
# What a run leaves when it dies before run.json is written, and what a batch system puts there before it starts.
_OWN = re.compile(
    r"\.lock|\.supervisor|\.saving|\.universal|set-aside|earlier-\d+-\d+|logs|nan|status|console\.log|(metrics|events|samples)\.jsonl"
    r"|(recipe|remedy|skip-steps)\.json|\..*\.json\..*\.tmp|slurm-.*\.(out|err)|\.nfs.*|report\.html"
)
RANK_LOG = re.compile(r"rank-(\d+)\.attempt-(\d+)\.log(\.gz)?")
_SLUG_LENGTH = 60
MANY_RANKS = 64
"""Above which each node's ranks write their logs into a sub-folder of its own: parallel file systems are slow with
folders of many thousand files."""


class _Inside:
    """A path inside a run folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: "RunFolder", owner: "type[RunFolder]") -> Path:
        return folder.path / self._name


@dataclass(frozen=True)
class RunFolder:
    """Paths inside one run folder; making a RunFolder touches no file."""

    path: Path

    run_json = _Inside("run.json")
    """Resolved specs, versions, host, command line of the newest attempt."""
    recipe = _Inside("recipe.json")
    """The resolved flags that the run trains by; written once per start."""
    metrics = _Inside("metrics.jsonl")
    """One line per logged step."""
    events = _Inside("events.jsonl")
    """One line per event."""
    console = _Inside("console.log")
    """What the user saw."""
    finished = _Inside("FINISHED")
    """There when the last attempt reached the run's end; what a requeued job looks for."""
    logs = _Inside("logs")
    """Folder of one log per rank and attempt."""
    model = _Inside("model")
    """Folder of the final model."""
    adapter = _Inside("adapter")
    """Folder of a LoRA run's adapter."""
    lock = _Inside(TRAINER_LOCK)
    """Locked by rank 0 of dsrun's own training."""
    supervisor_lock = _Inside(SUPERVISOR_LOCK)
    """Locked by the supervisor of the first node."""

    @classmethod
    def create(cls, path: Path | str, *, force: bool = False) -> "RunFolder":
        """The folder `path`, made if it is not there; an earlier run's folder is taken over as it is.

        For the launcher and the main worker, before `acquire`: the folder is in use afterwards, also for
        this process. Raises UsageError where `refuse_unfit` does."""
        folder = cls(Path(path))
        refuse_unfit(folder.path, force=force)
        try:
            folder.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _cannot_write(folder.path, error.strerror) from error
        return folder

    @classmethod
    def open(cls, path: Path | str) -> "RunFolder":
        """An existing run folder, for reading. Raises UsageError when `path` is none."""
        folder = cls(Path(path))
        if not folder.run_json.is_file():
            raise _REFUSALS.error("folder.no_run_json" if folder.path.is_dir() else "folder.missing", path=folder.path)
        return folder

    def checkpoint(self, step: int) -> Path:
        """Folder of the checkpoint after optimizer step `step`."""
        return self.path / f"checkpoint-{step}"

    @property
    def results(self) -> tuple[Path, ...]:
        """What `--resume never` sets aside beside checkpoints, predictions and samples, there or not."""
        kept = (self.model, self.adapter, self.metrics, self.events, self.run_json, self.recipe, self.console)
        return (*kept, self.finished)

    def log(self, rank: int, attempt: int = 0, *, node: int | None = None) -> Path:
        """Log of one rank in one attempt; in the sub-folder of its node, if that is given."""
        folder = self.logs if node is None else self.logs / f"node-{node}"
        return folder / f"rank-{rank}.attempt-{attempt}.log"

    def rank_logs(self) -> dict[Path, tuple[int, int]]:
        """All logs of ranks, also compressed ones, each with its rank and attempt."""
        files = [*self.logs.glob("rank-*"), *self.logs.glob("node-*/rank-*")]
        found = ((path, RANK_LOG.fullmatch(path.name)) for path in sorted(files))
        return {path: (int(match[1]), int(match[2])) for path, match in found if match}

    def checkpoints(self) -> list[tuple[int, Path]]:
        """Every checkpoint-N folder as (step, path), highest step first, whole or torn."""
        found = [
            (int(match[1]), entry)
            for entry in (self.path.iterdir() if self.path.is_dir() else ())
            if (match := _CHECKPOINT.fullmatch(entry.name)) and entry.is_dir()
        ]
        return sorted(found, reverse=True)

    def acquire(self) -> RunLock:
        """Lock the folder for this process, which trains; UsageError when another one does."""
        return RunLock(self.lock).acquire()

    def acquire_as_supervisor(self) -> RunLock:
        """Lock the folder for this process, which supervises the run; UsageError when another one does."""
        return RunLock(self.supervisor_lock).acquire()


def default_name(model: str, now: datetime) -> str:
    """Run folder of a run of `model` (Hub name or path) started at `now`: runs/t5-small-20261121-044800."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", model.rstrip("/").rpartition("/")[2])[:_SLUG_LENGTH].strip("-._")
    return f"runs/{slug or 'run'}-{now:%Y%m%d-%H%M%S}"


def refuse_unfit(path: Path, *, force: bool = False) -> None:
    """Raise UsageError unless a run may write to `path`; nothing is created.

    Unfit: a file; a folder in use; a place that cannot be written; a folder with other things in it that is
    no run folder, which `force` allows."""
    try:
        base = nearest_existing(path)
        _REFUSALS.check("unfit", path=path, base=base)
    except OSError as error:  # a name too long for the file system
        raise _cannot_write(path, error.strerror) from error
    if (root := base.resolve().parts[1:2]) and root[0] in ("proc", "sys"):  # whose folders root may write to, it seems
        raise _cannot_write(path, f"/{root[0]} is the kernel's, not a disk")
    # On another disk, as a link, or left by another user.
    inside = [folder for folder in (base, RunFolder(path).logs) if folder.is_dir()]
    if unfit := next((folder for folder in inside if not os.access(folder, os.W_OK | os.X_OK)), None):
        raise _cannot_write(path, f"no permission in {unfit}")
    # A rank may train in the folder of its supervisor.
    holder = trainer_of(path) if variables.RUN_ID in os.environ else is_in_use(path)
    if holder:
        raise in_use(path, holder)
    if path.is_dir() and not force and not RunFolder(path).run_json.is_file():
        foreign = sorted(entry.name for entry in path.iterdir() if not _OWN.fullmatch(entry.name))
        _REFUSALS.check("foreign", path=path, names=", ".join(foreign[:3]), more=len(foreign) - 3)


def _cannot_write(path: Path, why: str | None) -> DsrunError:
    return _REFUSALS.error("folder.unwritable", path=path, why=why)


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
        _REFUSALS.check("no_run", path=path, what=what, below=" ".join(map(str, runs_below(path)[:3])))


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
