"""Which attempt of a run this is, which checkpoints are its own, and which may be loaded."""

import itertools
import os
import pwd
import stat
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from dsrun.errors import UsageError
from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import STATE_FILE, CheckpointManifest, read_manifest
from dsrun.system import variables
from dsrun.system.host import hostname
from dsrun.system.process.proc import start_time

RESUME_AUTO = ("auto", "true", "True")
"""--resume: the newest whole checkpoint of the run folder. Trainer.train also takes a boolean."""
RESUME_NEVER = "never"


def attempt(environ: Mapping[str, str]) -> dict[str, int]:
    """Which attempt this is: `attempt` counts the supervisor's (or torchrun's) restarts, `requeue`, where there were
    any, the scheduler's."""
    counts = {
        "attempt": environ.get(variables.ATTEMPT) or environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
        "requeue": environ.get(variables.REQUEUE) or environ.get("SLURM_RESTART_COUNT", "0"),
    }
    numbers = {name: int(count) if count.isdigit() else 0 for name, count in counts.items()}
    return {name: number for name, number in numbers.items() if number or name == "attempt"}


def start_times(environ: Mapping[str, str]) -> dict[str, float]:
    """Of a supervisor's first attempt: `starting_s`, the seconds since the job or the supervisor began, and `queued_s`,
    those of a SLURM job in the queue before that."""
    if attempt(environ)["attempt"]:
        return {}
    found = {}
    began = environ.get(variables.BEGAN)
    with suppress(KeyError, ValueError):
        # Under torchrun or srun, which say nothing, a rank knows since when it lives.
        since = start_time(os.getpid()) if began is None else float(began)
        if since is not None:
            found["starting_s"] = round(max(0.0, time.time() - since), 3)
        found["queued_s"] = max(0.0, float(environ[variables.QUEUED]))
    return found


def signatures(environ: Mapping[str, str]) -> dict[str, str]:
    """What tells this run's checkpoints from those of other runs in its folder, by the counter of `attempt` that counts
    its starts: its supervisor, torchrun's name for it, or who has started this process; and its batch job, if any."""
    # "none" is the default of --rdzv-id, and so every such run has it.
    run_id = environ.get("TORCHELASTIC_RUN_ID", "none")
    starter = f"torchrun {run_id}" if run_id != "none" else f"process {os.getppid()} on {hostname()}"
    signed = {"attempt": environ.get(variables.RUN_ID) or starter}
    if job := environ.get(variables.JOB_UID) or environ.get("SLURM_JOB_ID"):
        signed["requeue"] = f"job {job}"
    return signed


def earlier_signatures(environ: Mapping[str, str]) -> frozenset[str]:
    """What earlier attempts of this run have signed their checkpoints with; nothing for the first one."""
    counts = attempt(environ)
    return frozenset(signature for name, signature in signatures(environ).items() if counts.get(name))


def is_another(environ: Mapping[str, str]) -> bool:
    """Whether this attempt is a restart, or a job's that was put back into the queue."""
    return any(attempt(environ).values())


class JobStarts:
    """The starts of this run by a job of Kubernetes, which does not count them; node 0 records them in the run folder.

    Pods that are created again find out there that the run began before them, or that it is over: those that have
    finished do not come again, to meet them. Under other schedulers there is nothing to read, and nothing is written.
    """

    def __init__(self, run: Path, environ: Mapping[str, str]) -> None:
        job = environ.get(variables.JOB_UID)
        self._file = RunFolder(run).logs / f"kubernetes-{job}" if job else None

    def _lines(self) -> list[str]:
        with suppress(OSError):
            return self._file.read_text().splitlines() if self._file else []
        return []

    @property
    def count(self) -> int:
        """How many there were."""
        return self._lines().count("began")

    @property
    def finished(self) -> bool:
        """Whether one of them has reached the end of the run."""
        return "finished" in self._lines()

    def record(self, what: Literal["began", "finished"]) -> None:
        """Write down that all nodes begin, or that all have finished. Where the disk is full, nothing is."""
        with suppress(OSError):
            if self._file:
                with self._file.open("a") as file:
                    file.write(f"{what}\n")


def bears(manifest: CheckpointManifest, signed: Collection[str]) -> bool:
    """Whether a checkpoint bears one of these signatures."""
    return not {*manifest["extra"].get("signed", ())}.isdisjoint(signed)


def saved_global_batch(run: RunFolder, resume: str, again: Collection[str] = ()) -> int | None:
    """The global batch of the checkpoint that a run in the folder `run` resumes from, by its manifest; None if there is
    none. `resume` is auto, never or a checkpoint.

    Not verified: the batch is needed before the ranks can share that work. With `again`, the signatures of this run's
    earlier attempts, its own checkpoints come before the one that was given: rotation may have deleted that one."""
    if resume == RESUME_NEVER:
        return None
    manifests: Iterator[CheckpointManifest | None] = (read_manifest(path) for _, path in run.checkpoints())
    if resume not in RESUME_AUTO:
        own = (manifest for manifest in manifests if manifest and bears(manifest, again)) if again else ()
        manifests = itertools.chain(own, (read_manifest(Path(each)) for each in (resume,)))
    newest = next((manifest for manifest in manifests if manifest), None)
    found = newest["extra"].get("global_batch") if newest else None
    return found if isinstance(found, int) and found > 0 else None


def check_resume(resume: str, run: RunFolder, environ: Mapping[str, str]) -> None:
    """Raise UsageError where --resume names a checkpoint that is not there; a later attempt has its own."""
    if resume not in (*RESUME_AUTO, RESUME_NEVER) and not is_another(environ) and not _is_checkpoint(Path(resume)):
        raise no_checkpoint(resume, run)


def no_checkpoint(resume: str, run: RunFolder) -> UsageError:
    """The error for a --resume that is no checkpoint, with those that are there: in the run folder or near by."""
    path = Path(resume)
    what = f"contains no {STATE_FILE}" if path.exists() else "does not exist"
    for folder in (run, RunFolder(path), RunFolder(path.parent)):
        found = [each for _, each in folder.checkpoints() if _is_checkpoint(each)]
        if found:
            names = ", ".join(each.name for each in found[:_SHOWN])
            return UsageError(f"--resume {resume} {what}; {folder.path} has {names}", fix=f"--resume {found[0]}")
    return UsageError(f"--resume {resume} {what}", fix="--resume auto takes the newest checkpoint, if there is one")


def _is_checkpoint(path: Path) -> bool:
    return (path / STATE_FILE).is_file()


_SHOWN = 5
_ROOT = 0


def refuse_untrusted(checkpoint: Path) -> None:
    """Raise UsageError where somebody else may have written what lies in `checkpoint`.

    That is: the folder above it, the folder, or anything in it belongs to another user than this one or root, or may
    be written by everybody. A sticky folder above it, such as /tmp, is fine: others cannot rename what is in it."""
    why = next(_reasons(checkpoint.absolute()), None)
    if why:
        what = f"{checkpoint} is not trusted: {why}; loading a checkpoint runs code that it may hold"
        raise UsageError(what, fix="correct the owner or the mode (chmod -R o-w), or use --trust")


def _reasons(checkpoint: Path) -> Iterator[str]:
    owners: set[int] = {os.geteuid(), _ROOT}
    looked_up = False
    for path, facts in _everything(checkpoint):
        if facts.st_uid not in owners and not looked_up:
            looked_up = True
            owners |= _also_me(checkpoint.parent)
        if facts.st_uid not in owners:
            yield f"{_short(path, checkpoint)} belongs to {_name(facts.st_uid)}"
        if facts.st_mode & stat.S_IWOTH and not facts.st_mode & stat.S_ISVTX:
            yield f"everybody may write to {_short(path, checkpoint)}"


def _everything(checkpoint: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The folder above, the folder and all in it, and their owners and modes; of a link also what it leads to."""
    yield checkpoint.parent, checkpoint.parent.stat()
    yield checkpoint, checkpoint.stat()
    seen: set[Path] = set()
    waiting = [checkpoint]
    while waiting:
        folder = waiting.pop()
        if folder.resolve() in seen:
            continue
        seen.add(folder.resolve())
        for path in sorted(folder.iterdir()):
            if path.is_symlink():
                own = path.lstat()
                # Linux gives every link the mode rwxrwxrwx, which means nothing.
                yield path, os.stat_result((stat.S_IFLNK, *tuple(own)[1:10]))
            if path.exists():
                yield path, path.stat()
            if path.is_dir():
                waiting.append(path)


def _also_me(folder: Path) -> set[int]:
    """The owner that a file gets which this process makes in `folder`: NFS and containers map users to others."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".owner.") as probe:
            return {os.fstat(probe.fileno()).st_uid}
    except OSError:
        return set()


def _short(path: Path, checkpoint: Path) -> str:
    return str(path.relative_to(checkpoint)) if checkpoint in path.parents else str(path)


def _name(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"
