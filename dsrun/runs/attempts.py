"""Which attempt of a run this is, and what its checkpoints and files are signed with."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import read_manifest
from dsrun.runs.schema import Manifest
from dsrun.system import variables
from dsrun.system.host import hostname

RESUME_AUTO = ("auto", "true", "True")
"""--resume: the newest whole checkpoint of the run folder. Trainer.train also takes a boolean."""
RESUME_NEVER = "never"


def attempt(environ: Mapping[str, str]) -> dict[str, int]:
    """Which attempt this is: `attempt` counts the supervisor's (or torchrun's) restarts, `requeue`, where there were
    any, the scheduler's."""
    counts = {
        "attempt": environ.get(variables.ATTEMPT) or environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
        "requeue": environ.get("SLURM_RESTART_COUNT", "0"),
    }
    numbers = {name: int(count) if count.isdigit() else 0 for name, count in counts.items()}
    return {name: number for name, number in numbers.items() if number or name == "attempt"}


def signatures(environ: Mapping[str, str]) -> dict[str, str]:
    """What tells this run's checkpoints from those of other runs in its folder, by the counter of `attempt` that counts
    its starts: its supervisor, torchrun's name for it, or who has started this process; and its batch job, if any."""
    run_id = environ.get("TORCHELASTIC_RUN_ID", "none")
    starter = f"torchrun {run_id}" if run_id != "none" else f"process {os.getppid()} on {hostname()}"
    signed = {"attempt": environ.get(variables.RUN_ID) or starter}
    if job := environ.get("SLURM_JOB_ID"):
        signed["requeue"] = f"job {job}"
    return signed


def earlier_signatures(environ: Mapping[str, str]) -> frozenset[str]:
    """What earlier attempts of this run have signed their checkpoints with; nothing for the first one."""
    counts = attempt(environ)
    return frozenset(words for name, words in signatures(environ).items() if counts.get(name))


def is_another(environ: Mapping[str, str]) -> bool:
    """Whether this attempt is a restart, or a job's that was put back into the queue."""
    return any(attempt(environ).values())


def bears(manifest: Manifest, signed: Collection[str]) -> bool:
    """Whether a checkpoint bears one of these signatures."""
    return not {*manifest["extra"].get("signed", ())}.isdisjoint(signed)


def saved_global_batch(run: RunFolder, resume: str, again: Collection[str] = ()) -> int | None:
    """The global batch of the checkpoint that a run in the folder `run` resumes from, by its manifest; None if there is
    none. `resume` is auto, never or a checkpoint.

    Not verified: the batch is needed before the ranks can share that work. With `again`, the signatures of this run's
    earlier attempts, its own checkpoints come before the one that was given: rotation may have deleted that one.
    """
    if resume == RESUME_NEVER:
        return None
    manifests: Iterator[Manifest | None] = (read_manifest(path) for _, path in run.checkpoints())
    if resume not in RESUME_AUTO:
        own = (manifest for manifest in manifests if manifest and bears(manifest, again)) if again else ()
        manifests = itertools.chain(own, (read_manifest(Path(each)) for each in (resume,)))
    newest = next((manifest for manifest in manifests if manifest), None)
    found = newest["extra"].get("global_batch") if newest else None
    return found if isinstance(found, int) and found > 0 else None
