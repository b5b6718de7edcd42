"""Answers of a real SLURM cluster, recorded (tests/data/slurm/README.md), and programs that give them again."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

from dsrun.slurm.cluster.cluster_facts import ClusterFacts
from dsrun.slurm.cluster.discover import read_accounting, read_facts

FOLDER = Path(__file__).parent / "data" / "slurm"


def recorded(name: str) -> str:
    """What was recorded under `name`."""
    return (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


def recorded_facts(**changes: object) -> ClusterFacts:
    """The recorded cluster as ClusterFacts; `changes` replace what `read_facts` is given."""
    accounting = read_accounting(
        associations=recorded("associations"),
        qualities=recorded("qualities"),
        enforced="associations,limits,qos",
    )
    given = {name: recorded(name) for name in ("partitions", "nodes", "config", "reservations", "licenses")}
    return read_facts(**{**given, "accounting": accounting, "user": "ada", "groups": ("ada",), **changes})


STAND_IN = """\
#!{python}
import sys
from pathlib import Path
words = " ".join(sys.argv[1:])
with open({log!r}, "a") as log:
    print(Path(sys.argv[0]).name, words, file=log)
for needle, out, err, code in {answers!r}:
    if needle in words:
        sys.stdout.write(out)
        sys.stderr.write(err)
        sys.exit(code)
sys.exit("no answer to " + words)
"""

Reply = tuple[str, str, str, int]


def stand_in(folder: Path, program: str, *answers: Reply | tuple[str, str]) -> Path:
    """Put an executable called `program` into `folder` that answers like SLURM's.

    Each answer is (words, stdout[, stderr, exit code]): the first whose words are in the command line is given. The
    command lines are logged in `folder`/calls.
    """
    full = [(*each, "", 0) if len(each) == 2 else each for each in answers]
    path = folder / program
    path.write_text(STAND_IN.format(python=sys.executable, log=str(folder / "calls"), answers=full))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def stand_in_cluster(folder: Path) -> None:
    """SLURM's programs for reading, with all that was recorded."""
    unknown = ("", "slurm_load_jobs error: Invalid job id specified\n", 1)
    stand_in(
        folder,
        "scontrol",
        ("show partition", recorded("partitions")),
        ("show node", recorded("nodes")),
        ("show config", recorded("config")),
        ("show reservation", recorded("reservations")),
        ("show licenses", recorded("licenses")),
        ("show job 62", recorded("job")),
        ("show job 66", recorded("job-array")),
        ("show job 67", recorded("job-failed")),
        ("show job", *unknown),
        ("write batch_script 62", recorded("script")),
        ("write batch_script", "", "job script retrieval failed: Invalid user id\n", 0),
    )
    one = next(row for row in recorded("squeue").split("\x1e\n") if row.startswith("62\x1f")) + "\x1e\n"
    stand_in(folder, "squeue", ("--jobs=62", one), ("--jobs", *unknown), ("--me", recorded("squeue")))
    stand_in(folder, "sacct", ("--jobs", ""), ("--user", recorded("sacct")))
    stand_in(folder, "sacctmgr", ("show user", recorded("associations")), ("show qos", recorded("qualities")))
