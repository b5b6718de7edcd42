"""Giving a script to SLURM: submit it, or only ask whether and when it would start."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from dsrun.errors import ToolError
from dsrun.slurm.cluster import query
from dsrun.system.capture import Answer

_NUMBER = re.compile(r"(\d+)(?:;\S+)?")
_WOULD = re.compile(
    r"Job \d+ to start at (?P<start>\S+) (?:a )?using (?P<cores>\d+) processors on (?:nodes )?(?P<nodes>\S+)"
    r"(?: in partition (?P<partition>\S+))?"
)
# SLURM's plan ends a year after the last job it knows; one without a time limit counts as decades (seen: 2083).
_NEVER_YEARS = 10


def submit(script: str, extra: Sequence[str] = (), *, say: Callable[[str], None] | None = None) -> str:
    """Submit the text `script` with the further options `extra` and return the job's number.

    `say` gets what sbatch remarks. Raises ToolError with SLURM's reason when it refuses the job, and MissingError
    where there is no SLURM.
    """
    answer = _sbatch(["--parsable", *extra], script)
    found = _NUMBER.fullmatch(answer.stdout.strip().rpartition("\n")[2])
    if answer.exit_code != 0 or not found:
        raise ToolError(f"SLURM refuses the job: {query.last_words(answer)}", fix="try --test-only")
    for line in answer.stderr.splitlines():
        if say and line.strip():
            say(line.strip())
    return found[1]


def test_only(script: str) -> str:
    """Whether and when the job would start, in one line. Uses up a job number. Raises as `submit` does."""
    answer = _sbatch(["--test-only"], script)
    if answer.exit_code != 0:
        # Also said of jobs that sbatch takes and that wait: for a drained node, or for ever.
        raise ToolError(f"SLURM could not start the job now: {query.last_words(answer)}")
    return forecast(query.last_words(answer))


def forecast(said: str) -> str:
    """What `sbatch --test-only` said, in our words; as it stands where it is unknown."""
    found = _WOULD.search(said)
    if not found:
        return said
    where = f"on {found['nodes']}" + (f" of partition {found['partition']}" if found["partition"] else "")
    if int(found["start"][:4]) - _this_year() > _NEVER_YEARS:
        return f"would start {where} when jobs that have no time limit end"
    return f"would start at {found['start']} {where} with {found['cores']} cores"


def _this_year() -> int:
    from datetime import datetime

    return datetime.now().astimezone().year


def _sbatch(options: Sequence[str], script: str) -> Answer:
    with tempfile.TemporaryDirectory(prefix="dsrun-") as folder:
        path = Path(folder) / "job.sh"
        path.write_bytes(script.encode("utf-8", "surrogateescape"))
        return query.sbatch(options, path)
