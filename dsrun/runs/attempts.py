"""Which attempt of a run this is, and what its checkpoints and files are signed with."""

from __future__ import annotations

import os
from collections.abc import Mapping

from dsrun.system import variables
from dsrun.system.host import hostname


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
