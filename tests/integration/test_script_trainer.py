"""`dsrun.train.Trainer` in a script of one's own, docs/examples/own_model.py, under `dsrun launch` and by itself."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from dsrun.runs.records import read_records
from tests.forkserver.client import HEAVY
from tests.integration.conftest import records

pytestmark = pytest.mark.train

SCRIPT = Path(__file__).parents[2] / "docs/examples/own_model.py"


def launched(output, steps, *, ranks=2):
    """The command line of the example under `dsrun launch`."""
    options = ["--nproc", str(ranks), "--output", str(output)]
    return [sys.executable, "-m", "dsrun", "launch", *options, "--", sys.executable, str(SCRIPT), str(steps)]


def ran(argv, **env):
    options = {"env": {**os.environ, **env}, "capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
    done = HEAVY.run(argv, **options)
    assert done.returncode == 0, done.stderr
    return done


def test_script_trainer_resumes_exactly(tmp_path):
    """The launcher's folder is the run's. The resumed run is the uninterrupted one to the bit, and a process by itself
    sees the same losses."""
    whole, resumed, alone = (tmp_path / name for name in ("whole", "resumed", "alone"))
    done = ran(launched(whole, 14))
    assert done.stderr.count("the model is in") == 1
    resumed.mkdir()
    shutil.copytree(whole / "checkpoint-10", resumed / "checkpoint-10")
    shutil.copy(whole / "run.json", resumed)
    ran(launched(resumed, 14))
    assert records(resumed, "loss") == records(whole, "loss")[10:]
    ours, theirs = (load_file(run / "model/model.safetensors") for run in (resumed, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    # As a module it is forked; each process of a script imports torch and the rest anew, 8 CPU seconds.
    ran([sys.executable, "-m", SCRIPT.stem, "3"], DSRUN_OUTPUT=str(alone), PYTHONPATH=str(SCRIPT.parent))
    assert records(alone, "loss")[0] == pytest.approx(records(whole, "loss")[0], rel=1e-4)
    assert AutoModelForCausalLM.from_pretrained(alone / "model").config.hidden_size == 64
    assert (whole / "FINISHED").exists()


@pytest.mark.exhaustive
def test_script_trainer_saves_on_sigterm(tmp_path):
    """As `dsrun train`: 75, and the same line goes on from the step that was saved."""
    run = tmp_path / "run"
    argv = launched(run, 100, ranks=1)  # each is a new process with imports of its own
    process = HEAVY.popen(argv, env=dict(os.environ), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None and not ((run / "metrics.jsonl").exists() and records(run, "loss")):
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 75
    finally:
        process.kill()
    saved = max(int(path.name.partition("-")[2]) for path in run.glob("checkpoint-*"))
    assert saved < 100
    assert not (run / "model").exists()
    ran(argv)
    (resume,) = (row for row in read_records(run / "events.jsonl") if row["kind"] == "resume")
    assert resume["step"] == saved
    assert len(records(run, "loss")) == 100
