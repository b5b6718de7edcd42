"""Workers without a supervisor that get a signal: one checkpoint on which all ranks agree, and no FINISHED."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import is_complete
from dsrun.runs.records import read_records
from dsrun.system.net import free_port
from tests.forkserver.client import HEAVY
from tests.forkserver.ranks import Ranks
from tests.integration.conftest import SHORT

pytestmark = pytest.mark.train


def losses(folder):
    return [row["loss"] for row in read_records(folder.metrics) if "loss" in row]


def kinds(folder):
    return [row["kind"] for row in read_records(folder.events)]


@pytest.mark.parametrize("stage", ["0", "3"])
def test_preemption_signal_to_one_rank_stops_all_ranks(stage, tiny, pairs, tmp_path):
    """One rank that is told to stop takes the others along, with one checkpoint of them all."""
    folder = RunFolder(tmp_path / "run")
    args = [
        *("--model", tiny["llama"], "--zero", stage, "--train-file", pairs["train"], *SHORT),
        *("--max-steps", "5000", "--output", folder.path),
    ]
    ranks = Ranks(tmp_path / "logs", "dsrun.train", args, count=2, env={"DSRUN_SAVE_ON": "USR1,TERM"})
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and not (folder.metrics.exists() and losses(folder)):
        time.sleep(0.05)
    ranks.processes[1].send_signal(signal.SIGUSR1)
    said = ranks.wait()
    steps = [step for step, _ in folder.checkpoints()]
    assert len(steps) == 1
    assert 1 < steps[0] < 5000
    assert is_complete(folder.checkpoint(steps[0]))
    assert not folder.finished.exists()
    assert not folder.model.exists()
    assert kinds(folder)[-1] == "signal"
    assert f"stopped by SIGUSR1 to rank 1 on {socket.gethostname()}: saved checkpoint-{steps[0]}" in said
    event = read_records(folder.events)[-1]
    assert (event["signal"], event["rank"], event["signalled_host"]) == ("SIGUSR1", 1, socket.gethostname())
    assert event["signalled_at"] <= event["time"]


def test_preemption_signal_before_training_is_no_failure(tmp_path):
    """The worker is told while it waits for its peer; exit code 0 and no record of a failure."""
    env = {
        **os.environ, "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "DSRUN_SAVE_ON": "USR1",
        "DSRUN_FAILURES": str(tmp_path), "DSRUN_CACHE": str(tmp_path / "cache"),
    }  # fmt: skip
    argv = [sys.executable, "-m", "dsrun.train", "--model", "demo-t5", "--output", str(tmp_path / "run")]
    with HEAVY.popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as worker:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and not (tmp_path / "run" / "console.log").exists():
            time.sleep(0.05)
        worker.send_signal(signal.SIGUSR1)
        said, _ = worker.communicate(timeout=300)
    assert worker.returncode == 0, said
    assert not list(tmp_path.glob("rank-*.json"))
    assert not (tmp_path / "run" / "FINISHED").exists()
