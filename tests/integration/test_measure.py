"""`dsrun plan --measure` as a user calls it: a real training on the CPU, ended after its time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forkserver.client import HEAVY
from tests.integration.conftest import SHORT

pytestmark = pytest.mark.train


@pytest.fixture
def measure(tmp_path):
    """Call `dsrun plan --measure` without a GPU in sight, and with `tmp_path / "scratch"` for temporary files."""
    (tmp_path / "scratch").mkdir()

    def call(*args: str) -> subprocess.CompletedProcess[str]:
        environ = os.environ | {"CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(tmp_path / "scratch")}
        command = [sys.executable, "-m", "dsrun", "plan", "--measure", *args]
        files = {"cwd": tmp_path, "env": environ, "stdin": subprocess.DEVNULL}
        return HEAVY.run(command, **files, capture_output=True, text=True)

    return call


def test_plan_measure_quotes_by_real_steps(tiny, pairs, measure, tmp_path):
    """A training of far more steps is ended; epochs are those of its data, and no folder is left."""
    flags = ["train", "--model", tiny["t5"], "--train-file", pairs["train"], "--use-cpu", *SHORT, "--nproc", "1"]
    done = measure(
        "1s", "--epochs", "53", "--price", "2", "--format", "json", "--", *flags, "--num-train-epochs", "100000"
    )
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert (made["gpu"], made["gpu_hours"], made["cost"]) == ("CPU", None, None)
    assert made["measured_s"] >= 0.5
    assert made["hours"] == pytest.approx(made["tokens"] / made["tokens_per_s"] / 3600, rel=1e-3)
    lengths = [len(row["source"].split()) + len(row["target"].split()) for row in _rows(pairs["train"])]
    # Each side ends in one token more, and the padding of a batch does not count.
    assert made["tokens"] == pytest.approx(53 * (sum(lengths) + 2 * len(lengths)), rel=0.2)
    assert "CPU" in done.stderr
    assert not list((tmp_path / "scratch").glob("dsrun-measure-*"))


def test_plan_measure_of_a_training_that_fails_has_its_exit_code(tiny, measure, tmp_path):
    done = measure("1s", "--tokens", "1B", "--", "train", "--model", tiny["t5"], "--train-file", "none.jsonl")
    assert (done.returncode, done.stdout) == (2, "")
    assert "none.jsonl" in done.stderr
    assert not list((tmp_path / "scratch").glob("dsrun-measure-*"))


def _rows(file: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in Path(file).read_text().splitlines()]
