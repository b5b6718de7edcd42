"""A rank that computes slowly is named while the run goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dsrun.runs.node_status import read_node_status
from dsrun.runs.records import read_records
from dsrun.system.host import hostname
from tests.integration.conftest import SHORT, dsrun

pytestmark = pytest.mark.train

INJECT = Path(__file__).parents[1] / "faults" / "inject"


@pytest.mark.parametrize("zero", ["0", "2"])
def test_slowed_rank_is_named(zero, tiny, pairs, tmp_path):
    """Rank 1 of two takes a fifth longer in each forward pass; under DDP the other waits in C++."""
    fault = {"point": "forward", "action": "sleep 0.2,0.25", "rank": None, "each": True}
    env = {"PYTHONPATH": f"{INJECT}:{os.environ.get('PYTHONPATH', '')}", "DSRUN_FAULT": json.dumps(fault)}
    flags = [
        *("--model", tiny["llama"], "--train-file", pairs["train"], "--validation-split-percentage", "0"),
        *("--zero", zero, "--nproc", "2", *SHORT, "--max-steps", "60", "--save-every", "1000"),
    ]
    done = dsrun(*flags, output=tmp_path / "run", env=env).ok()
    events = [each for each in read_records(tmp_path / "run" / "events.jsonl") if each["kind"] == "straggler"]
    assert [(each["rank"], each["host"], each["chronic"]) for each in events] == [(1, hostname(), True)]
    assert 1.15 < events[0]["slowdown"] < 1.5
    assert f"rank 1 ({hostname()}) is slow" in done.err
    fast, slow = read_node_status(tmp_path / "run")[0].ranks
    assert fast.wait_s > slow.wait_s + 0.02
    for each in (fast, slow):
        assert each.data_s + each.compute_s + each.wait_s == pytest.approx(each.step_s, rel=0.3)
