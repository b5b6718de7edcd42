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
    """Rank 1 of two takes half as long again in each forward pass; under DDP the other waits in C++."""
    fault = {"point": "forward", "action": "sleep 0.2,0.3", "rank": None, "each": True}
    env = {"PYTHONPATH": f"{INJECT}:{os.environ.get('PYTHONPATH', '')}", "DSRUN_FAULT": json.dumps(fault)}
    flags = [
        *("--model", tiny["llama"], "--train-file", pairs["train"], "--validation-split-percentage", "0"),
        *("--zero", zero, "--nproc", "2", *SHORT, "--max-steps", "60", "--save-every", "1000"),
    ]
    done = dsrun(*flags, output=tmp_path / "run", env=env).ok()
    events = [each for each in read_records(tmp_path / "run" / "events.jsonl") if each["kind"] == "straggler"]
    # A busy machine may keep either rank from the processor for a moment: a stall, and not chronic. Or rank 0 for so
    # long that rank 1 counts as recovered, and is named again.
    slow = [each for each in events if each["chronic"] and not each.get("stalls")]
    assert {(each["rank"], each["host"]) for each in slow} == {(1, hostname())}
    assert slow[0]["slowdown"] > 1.15
    assert slow[0]["message"] in done.err
    first, second = read_node_status(tmp_path / "run")[0].ranks
    assert first.wait_s > second.wait_s
    assert first.own_s < second.own_s
