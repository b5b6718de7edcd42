"""The run folder: its paths, and which folders may become one."""

import os
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from dsrun.errors import DsrunError
from dsrun.refusals import Refusals
from dsrun.runs.lock import SUPERVISOR_LOCK, TRAINER_LOCK, RunLock, in_use, is_in_use, trainer_of
from dsrun.system import variables
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
        this process. Raises UsageError where `refuse_unfit` does.
        """
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
    no run folder, which `force` allows.
    """
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
