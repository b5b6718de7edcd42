"""`dsrun plan --calibrate` as a user calls it: two real steps on the CPU, and when it refuses to take any."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from dsrun.zero.memory.plan_text import VERSION
from tests.forkserver.client import HEAVY
from tests.integration.conftest import make_model

pytestmark = [pytest.mark.train, pytest.mark.exhaustive]

MEASURED = re.compile(r"a CPU rank: predicted ([\d.]+) GiB, measured ([\d.]+) GiB \(([+-][\d.]+)%\)")
# The calibration's own cache, so that "nothing is kept" can be seen.
QUESTION = ("--gpus", "a100-80", "--max-length", "16", "--precision", "fp32", "--calibrate")


@pytest.fixture
def calibrate(tmp_path):
    """Call `dsrun plan --calibrate` without a GPU in sight; `tmp_path / "cache"` is where it could keep something."""

    def call(*args: str) -> subprocess.CompletedProcess[str]:
        environ = os.environ | {"CUDA_VISIBLE_DEVICES": "", "DSRUN_CACHE": str(tmp_path / "cache")}
        command = [sys.executable, "-m", "dsrun", "plan", *args]
        return HEAVY.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    return call


@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_plan_calibrate_measures_peak_memory_of_two_steps(kind, tiny, calibrate, tmp_path):
    """The memory of two real steps is reported beside the predicted memory."""
    done = calibrate("--model", tiny[kind], *QUESTION, "--format", "json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["version"] == VERSION
    assert {"choice", "strategies", "cluster", "model"} <= set(answer)
    predicted, measured, off = map(float, MEASURED.search(done.stderr).groups())
    # A worker with torch, transformers and DeepSpeed takes some 0.6 GiB, whatever the tiny model adds.
    assert 0.2 < measured < 3
    assert predicted / 2 < measured < predicted * 2
    # Both sizes are rounded to a hundredth of a GiB before they are said, the difference is not.
    half = 0.005
    assert (
        (predicted - half) / (measured + half) - 0.005
        <= 1 + off / 100
        <= (predicted + half) / (measured - half) + 0.005
    )
    assert "kept in" not in done.stderr
    assert not (tmp_path / "cache" / "calibration").exists()


def test_plan_calibrate_failure_is_one_line(tiny, calibrate, tmp_path):
    """A config that can be planned for but not trained: its tokenizer is missing."""
    folder = make_model(tmp_path / "bare", "llama")
    for file in folder.glob("tokenizer*"):
        file.unlink()
    done = calibrate("--model", str(folder), *QUESTION)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: the two steps failed: error: tokenizer")
    assert "Traceback" not in done.stderr
