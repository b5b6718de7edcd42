"""A rank is killed outright; the next start ends as if nothing had been, by the oracle of the fault tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import complete_checkpoints
from dsrun.runs.records import read_records
from tests.faults.hold import Hold
from tests.faults.oracle import curve, findings
from tests.forkserver.client import HEAVY
from tests.integration.conftest import SHORT, dsrun
from tests.integration.test_training import wait_for
from tests.sample_ledger import ledgers, steps

pytestmark = pytest.mark.train

SAMPLES, STEPS = 53, 30


@pytest.mark.exhaustive
def test_resume_after_sigkill_equals_uninterrupted_run(tiny, pairs, tmp_path):
    """A run with a killed rank is resumed and loses nothing."""
    flags = [
        "--model", tiny["t5"], "--from-scratch", "--model-config", "dropout_rate=0.1", "--zero", "2", "--nproc", "2",
        "--train-file", pairs["train"], *SHORT, "--gradient-accumulation-steps", "2", "--dataloader-num-workers", "1",
        "--max-steps", STEPS, "--save-steps", "7", "--max-restarts", "0", "--sample-ledger",
        "--hang-timeout", "0",
    ]  # fmt: skip
    whole, run = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "run")
    dsrun(*flags, output=whole.path).ok()
    argv = [sys.executable, "-m", "dsrun", "train", *map(str, flags), "--output", str(run.path)]
    # Two micro batches a step: in the eleventh.
    hold = Hold(tmp_path, "forward", call=21)
    env = {**os.environ, **hold.env}
    with HEAVY.popen(argv, env=env, stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: complete_checkpoints(run) and max(curve(run.path), default=0) > 9)
        # Of rank 0, which writes the events.
        os.kill(read_records(run.events)[0]["pid"], signal.SIGKILL)
        assert process.wait(120) != 0
    assert not run.finished.exists()
    dsrun(*flags, output=run.path).ok()
    assert findings(run.path, whole.path, samples=SAMPLES) == []
    attempts = {attempt for step in steps(ledgers(run.path)).values() for attempt in step.attempts}
    assert attempts == {0, 1}
