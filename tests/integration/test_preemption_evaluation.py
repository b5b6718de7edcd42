"""A signal in the middle of an evaluation: a checkpoint, no FINISHED, and the next start evaluates."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file

from dsrun.runs.folder import RunFolder
from dsrun.runs.heartbeat import read_beats
from dsrun.runs.manifest import is_complete
from dsrun.runs.records import read_records
from dsrun.system import variables
from tests.faults.hold import Hold
from tests.forkserver.ranks import Ranks
from tests.integration.conftest import SHORT

pytestmark = pytest.mark.train

RANKS = 2
TOLD_AT = 2


class Group:
    """Two ranks with the variables that a supervisor sets."""

    def __init__(self, scratch: Path, output: Path, *args: str, hold: Hold | None = None) -> None:
        scratch.mkdir()
        self.beats = scratch / "beats"
        self.failures = scratch
        env = {
            "DSRUN_SAVE_ON": "USR1,TERM",
            "DSRUN_HEARTBEAT": str(self.beats),
            "DSRUN_FAILURES": str(scratch),
            "DSRUN_STOP_FILE": str(scratch / "stop"),
            variables.ATTEMPT: "0",
            **(hold.env if hold else {}),
        }
        self._ranks = Ranks(scratch / "logs", "dsrun.train", [*args, "--output", output], count=RANKS, env=env)

    def at(self, phase: str, *, step: int) -> int:
        """The pid of rank 1, which is in this phase after this step."""
        beat = read_beats(self.beats)[1]
        assert (beat.phase, beat.step) == (phase, step)
        return beat.pid

    def end(self) -> str:
        return self._ranks.wait()


def metrics(folder):
    """Every figure of metrics.jsonl but those of time, by step."""
    kept = ("step", "loss", "eval_loss", "eval_bleu", "lr")
    return [{name: row[name] for name in kept if name in row} for row in read_records(folder.metrics)]


def best(folder):
    state = json.loads((folder.checkpoint(4) / "trainer_state.json").read_text())
    return state["best_global_step"], state["best_metric"]


@pytest.mark.parametrize("phase", ["generating"])
def test_preemption_during_evaluation_resumes_identically(phase, tiny, pairs, tmp_path):
    """Told to stop while it evaluates, a run saves a checkpoint, and the resumed run is as if nothing had happened."""
    many = tmp_path / "validation.jsonl"
    many.write_text(Path(pairs["validation"]).read_text() * 4)
    flags = [
        "--model", tiny["t5"], "--zero", "0", "--train-file", pairs["train"], "--validation-file", str(many), *SHORT,
        "--max-steps", "4", "--eval_strategy", "steps", "--eval_steps", "2", "--per_device_eval_batch_size", "1",
        "--load_best_model_at_end", "--save-every", "4", "--generation_max_length", "12",
    ]  # fmt: skip
    whole, folder = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "run")
    Group(tmp_path / "a", whole.path, *flags).end()

    hold = Hold(tmp_path, phase, call=5)
    told = Group(tmp_path / "b", folder.path, *flags, hold=hold)
    hold.wait()
    os.kill(told.at(phase, step=TOLD_AT), signal.SIGTERM)
    hold.release()
    assert f": saved checkpoint-{TOLD_AT}" in told.end()
    assert json.loads((told.failures / "interrupted.json").read_text()) == {
        "step": TOLD_AT,
        "path": f"checkpoint-{TOLD_AT}",
    }
    assert (told.failures / "stop").exists()
    assert not list(told.failures.glob("rank-*.json"))
    assert is_complete(folder.checkpoint(TOLD_AT))
    assert not any("eval_loss" in row for row in metrics(folder))
    assert not folder.finished.exists()
    assert not folder.model.exists()

    Group(tmp_path / "c", folder.path, *flags).end()
    assert metrics(folder) == metrics(whole)
    assert best(folder) == best(whole)
    assert folder.finished.exists()
    weights = [load_file(each.model / "model.safetensors") for each in (whole, folder)]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])


def test_preemption_of_evaluation_only_run(tiny, pairs, tmp_path):
    """A run that only evaluates is left as well and evaluates afresh when started again."""
    many = tmp_path / "validation.jsonl"
    many.write_text(Path(pairs["validation"]).read_text() * 4)
    folder = RunFolder(tmp_path / "run")
    flags = ["--model", tiny["llama"], "--validation-file", str(many), "--do_eval", *SHORT]
    flags += ["--per_device_eval_batch_size", "1"]
    hold = Hold(tmp_path, "evaluating", call=5)
    told = Group(tmp_path / "a", folder.path, *flags, hold=hold)
    hold.wait()
    os.kill(told.at("evaluating", step=0), signal.SIGTERM)
    hold.release()
    assert ": left the evaluation" in told.end()
    assert json.loads((told.failures / "interrupted.json").read_text()) == {"step": 0, "path": None}
    assert not metrics(folder)
    assert not folder.finished.exists()
    Group(tmp_path / "b", folder.path, *flags).end()
    assert any("eval_loss" in row for row in metrics(folder))
    assert folder.finished.exists()
