"""`dsrun train` continues by itself: with less memory, or without the step that was NaN, to the end of the run."""

from __future__ import annotations

import json
import math

import pytest

from dsrun.runs.folder import RunFolder
from dsrun.runs.records import read_records, revive
from tests.integration.conftest import SHORT, dsrun
from tests.integration.poison import MORE_THAN_TWO_ROWS, TOO_MUCH_MEMORY, poisoned_data, poisoned_model

pytestmark = pytest.mark.train

STEPS = 6
COMMON = (
    *("--trust-remote-code", "--validation-split-percentage", "0", "--zero", "2", "--nproc", "2", *SHORT),
    *("--max-steps", str(STEPS), "--save-every", "1", "--max-restarts", "0"),
)  # a remedy is no restart that --max-restarts counts
# The model counts rows to run out of memory; packed, it would have few.
ROW_BY_ROW = ("--train-sampling-strategy", "random")


def failures(folder):
    return [event["cause"] for event in read_records(folder.events) if event["kind"] == "failure"]


@pytest.mark.exhaustive
def test_auto_micro_batch_is_halved_on_oom_until_it_fits(pairs, tmp_path):
    """The largest micro batch that fits is found, and the global batch stays."""
    model = poisoned_model(tmp_path / "model", TOO_MUCH_MEMORY, MORE_THAN_TWO_ROWS)
    folder = RunFolder(tmp_path / "run")
    flags = ("--model", model, "--train-file", pairs["train"], *COMMON, *ROW_BY_ROW)
    done = dsrun(*flags, "--micro-batch-size", "auto", "--global-batch-size", "16", output=folder.path).ok()
    found = json.loads(folder.run_json.read_text())["batch"]
    assert (found["micro_batch"], found["accumulation"], found["global_batch"]) == (2, 4, 16)
    assert failures(folder) == ["host_oom_killed"] * 2
    assert done.err.count("half the micro batch and more accumulation, the global batch stays") == 2
    assert len(done.losses) == STEPS
    assert folder.finished.exists()


def test_oom_without_memory_fallback_prints_advice(pairs, tmp_path):
    """With --no-remedy, a run out of memory ends and says what would help."""
    model = poisoned_model(tmp_path / "model", TOO_MUCH_MEMORY, MORE_THAN_TWO_ROWS)
    flags = ("--model", model, "--train-file", pairs["train"], *COMMON, *ROW_BY_ROW, "--micro-batch-size", "4")
    done = dsrun(*flags, "--no-remedy", output=tmp_path / "run")
    assert done.code == 1
    error, advice, log = done.err.splitlines()[-3:]
    assert "can't allocate memory: you tried to allocate" in error
    assert advice.startswith("       host memory exhausted, and no remedy is allowed: a smaller --micro-batch-size")
    assert log.startswith("       full log: ")
    assert not done.losses


def test_nan_rollback_skips_step_and_finishes(pairs, tmp_path):
    """Rollback goes back to the last checkpoint, leaves the step out and trains to the end."""
    data = poisoned_data(tmp_path / "train.jsonl", pairs["train"], row=20)
    folder = RunFolder(tmp_path / "run")
    flags = ("--model", poisoned_model(tmp_path / "model"), "--train-file", data, *COMMON)
    done = dsrun(*flags, "--on-nan", "rollback", output=folder.path).ok()
    (step,) = json.loads((folder.path / "skip-steps.json").read_text())["steps"]
    assert failures(folder) == ["nan_loss"]
    assert f"again from step {step - 1}, without what failed" in done.err
    losses = {row["step"]: row["loss"] for row in map(revive, read_records(folder.metrics)) if "loss" in row}
    assert [each for each in range(1, STEPS + 1) if math.isnan(losses[each])] == [step]
    assert folder.finished.exists()
