"""What `dsrun launch` says when a run is over."""

from __future__ import annotations

import pytest

from dsrun.cli import launch_job
from dsrun.launch.context import Here
from dsrun.launch.job import Outcome
from dsrun.launch.topology import Topology
from dsrun.runs.folder import RunFolder

EVENTS = """\
{"time": "2026-11-21T04:00:00.000+00:00", "kind": "start", "attempt": 0}
{"time": "2026-11-21T04:00:10.000+00:00", "kind": "training", "step": 0}
{"time": "2026-11-21T04:01:40.000+00:00", "kind": "end", "step": 100}
"""


@pytest.mark.parametrize(("node", "foreign", "told"), [(0, False, True), (1, False, False), (0, True, False)])
def test_the_first_node_says_where_the_time_of_a_training_went(tmp_path, capsys, node, foreign, told):
    folder = RunFolder.create(tmp_path / "run")
    folder.events.write_text(EVENTS)
    work = launch_job.Work(
        topology=Topology(1, "cpu", 1),
        output=str(folder.path),
        foreign=foreign,
        debug=False,
        dry_run=False,
        force=False,
        job=pytest.fail,
    )
    place = Here(how="here", nodes=2, node=node)
    assert launch_job._report(Outcome(0), folder, work, place) == 0
    assert ("goodput 90.0%: 90 s training" in capsys.readouterr().err) is told
