"""A rank of `dsrun train` that hangs outside the loop of steps is found by the limit of its phase."""

from __future__ import annotations

import pytest

from dsrun.diagnosis.run_diagnosis import of_run
from dsrun.monitoring.run_status import status_of
from dsrun.runs.reader import read_history
from dsrun.runs.records import read_records
from tests.integration.conftest import SHORT, dsrun

pytestmark = pytest.mark.train

# Rank 1 of the first attempt falls asleep at one of the Trainer's callbacks.
PLUGIN = """
import os, time
from transformers import TrainerCallback
from dsrun.plugin import Plugin

if os.environ["HANGS_AT"] == "destroy_process_group":
    import torch.distributed

    torch.distributed.destroy_process_group = lambda *_: fall_asleep()

def fall_asleep(*_args, **_more):
    if os.environ["RANK"] == "1" and os.environ["DSRUN_ATTEMPT"] == "0":
        time.sleep(10000)

class Hanging(Plugin):
    api_version = 1

    def callbacks(self):
        return [type("Hang", (TrainerCallback,), {os.environ["HANGS_AT"]: fall_asleep})()]
"""


@pytest.mark.parametrize(
    ("place", "flag"),
    [
        ("on_step_begin", ("--ddp_timeout", "30")),
        pytest.param("on_step_begin", ("--hang-timeout", "8"), marks=pytest.mark.exhaustive),
        pytest.param("on_evaluate", ("--hang-timeout", "8"), marks=pytest.mark.exhaustive),
        pytest.param("on_save", ("--hang-timeout", "8"), marks=pytest.mark.exhaustive),
        pytest.param("on_train_end", ("--hang-timeout", "8"), marks=pytest.mark.exhaustive),
    ],
)
def test_hang_in_phase_is_found(place, flag, tiny, pairs, tmp_path, monkeypatch):
    """The supervisor is before the process group, whose time-out would blame the rank that waits."""
    (tmp_path / "hanging.py").write_text(PLUGIN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("HANGS_AT", place)
    flags = ["--model", tiny["llama"], "--zero", "2", "--nproc", "2", "--train-file", pairs["train"], *SHORT]
    steps = ["--max-steps", "4", "--save-every", "2", "--eval-strategy", "steps", "--eval-steps", "2"]
    dsrun(*flags, *steps, "--plugin", "hanging:Hanging", *flag, output=tmp_path / "run").ok()
    events = list(read_records(tmp_path / "run" / "events.jsonl"))
    [failing], [failure] = ([each for each in events if each["kind"] == kind] for kind in ("failing", "failure"))
    assert (failing["cause"], failing["rank"], failing["attempt"]) == ("rank_hung", 1, 0)
    assert (failure["cause"], failure["rank"]) == ("rank_hung", 1)
    assert failure["seconds"] < 30


def test_hang_after_the_end_is_no_failure(tiny, pairs, tmp_path, monkeypatch):
    """Of a rank that does not leave: the run is not trained, or saved, a second time."""
    (tmp_path / "hanging.py").write_text(PLUGIN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("HANGS_AT", "destroy_process_group")
    flags = ["--model", tiny["llama"], "--zero", "2", "--nproc", "2", "--train-file", pairs["train"], *SHORT]
    flags += ["--max-steps", "2", "--plugin", "hanging:Hanging", "--hang-timeout", "8"]
    done = dsrun(*flags, output=tmp_path / "run").ok()
    kinds = [each["kind"] for each in read_records(tmp_path / "run" / "events.jsonl")]
    assert (kinds.count("start"), kinds.count("training"), kinds[-2:]) == (1, 1, ["failing", "end"])
    assert "failure" not in kinds
    assert status_of(read_history(tmp_path / "run")).state == "finished"
    assert of_run(tmp_path / "run").cause.code == "none"
    assert "resumes" not in done.err
