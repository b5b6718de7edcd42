"""`dsrun doctor --ranks` and `--nodes`: the collectives between ranks and nodes, tested and measured."""

import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dsrun.cli.launch.remote import srun_argv
from dsrun.cli.output import print_findings, print_json, print_line, print_table
from dsrun.collectives.judge import CollectiveVerdict
from dsrun.collectives.observations import CollectiveObservations
from dsrun.collectives.place import place_of
from dsrun.collectives.report import as_json, common_facts, member_rows, together
from dsrun.collectives.run_collectives import run_test
from dsrun.errors import MissingError
from dsrun.findings.finding import Finding
from dsrun.findings.show import shown
from dsrun.launch.context import SrunLauncher
from dsrun.system import variables
from dsrun.system.terminal.stderr import print_note

EXCLUDE_FILE = "doctor-exclude"
"""In the folder of DSRUN_FAILURES: the hosts that the test speaks against, one a line, for the job's script."""


def run_collectives(*, form: str, findings: Sequence[Finding] = (), **given: Any) -> int:
    """Test the ranks of this machine, or take part in a test of several; the exit code. `given` are the arguments of
    `place_of`.

    Outside of the steps of a SLURM job this process becomes an srun of one doctor per node. Raises UsageError for
    arguments that contradict themselves or the surroundings. `findings` are those of this node's own checks, which go
    into the table of all nodes."""
    place = place_of(**given, environ=os.environ)
    if isinstance(place, SrunLauncher):
        if shutil.which("srun") is None:
            raise MissingError("inside a SLURM job, but srun is not installed", fix="--ranks N for this machine alone")
        argv = [*srun_argv(place.nodes, os.environ), "--kill-on-bad-exit=0", sys.executable, "-m", "dsrun"]
        os.execvp("srun", [*argv, *sys.argv[1:]])
    outcome = run_test(
        place, secret=os.environ.get(variables.SECRET), limits=None, notify=print_note, findings=findings
    )
    if outcome.seen is not None and outcome.verdict is not None:
        shared = os.environ.get(variables.FAILURES)
        if shared and outcome.verdict.exclude:
            with suppress(OSError):  # the script of a SLURM job reads there which nodes to avoid
                Path(shared, EXCLUDE_FILE).write_text("".join(f"{host}\n" for host in outcome.verdict.exclude))
        _print(outcome.seen, outcome.verdict, form)
    elif outcome.finding is not None:
        # stdout has the leader's table.
        print_note(shown(outcome.finding).line)
    return outcome.exit_code


def _print(seen: CollectiveObservations, verdict: CollectiveVerdict, form: str) -> None:
    if form == "json":
        print_json(as_json(seen, verdict))
        return
    print_table(member_rows(seen, verdict))
    for line in (together(seen), common_facts([member.facts for member in seen.members.values()])):
        if line:
            print_line(line)
    # Their messages name the ranks and nodes.
    print_findings(verdict.findings, places=False)
