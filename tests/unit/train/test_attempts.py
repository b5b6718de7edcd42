"""Which attempt a worker belongs to, and what that does to --resume."""

from __future__ import annotations

import json
import time

import psutil
import pytest

from dsrun.recipe.resolve import resolve
from dsrun.runs.attempts import attempt, earlier_signatures, signatures, start_times
from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import write_manifest
from dsrun.train.base.run_records import step_of
from dsrun.train.worker import _resumed_if_restarted, _set_aside_earlier_run


@pytest.mark.parametrize(
    ("environ", "counts"),
    [
        ({}, {"attempt": 0}),
        ({"DSRUN_ATTEMPT": "2", "TORCHELASTIC_RESTART_COUNT": "0"}, {"attempt": 2}),
        ({"TORCHELASTIC_RESTART_COUNT": "1"}, {"attempt": 1}),
        ({"DSRUN_ATTEMPT": "0", "SLURM_RESTART_COUNT": "3"}, {"attempt": 0, "requeue": 3}),
        ({"DSRUN_ATTEMPT": "x"}, {"attempt": 0}),
    ],
)
def test_restart_and_requeue_counts(environ, counts):
    """Restarts and requeues are counted apart."""
    assert attempt(environ) == counts


def test_step_of_renamed_checkpoint(tmp_path):
    (tmp_path / "trainer_state.json").write_text(json.dumps({"global_step": 42}))
    assert step_of(tmp_path.rename(tmp_path.with_name("the-good-one"))) == 42
    assert step_of(tmp_path / "checkpoint-7") == 7


@pytest.mark.parametrize(("asked", "again"), [("never", "auto"), ("auto", "auto"), ("elsewhere", "elsewhere")])
def test_resume_never_for_first_attempt_only(asked, again, tmp_path, monkeypatch):
    """A checkpoint's folder holds for later attempts too: the run may have died before it saved anything itself."""
    recipe = resolve(["--model", "demo-t5", "--resume", asked], tmp_path)
    assert _resumed_if_restarted(recipe).spec.resume == asked
    monkeypatch.setenv("DSRUN_ATTEMPT", "1")
    assert _resumed_if_restarted(recipe).spec.resume == again


FAMILY, JOB = {"DSRUN_RUN_ID": "us"}, {"SLURM_JOB_ID": "7"}


@pytest.mark.parametrize(
    ("environ", "known"),
    [
        (FAMILY | JOB, set()),
        (FAMILY | JOB | {"DSRUN_ATTEMPT": "1"}, {"us"}),
        # Another supervisor in the same job, which was put back into the queue.
        (JOB | {"DSRUN_RUN_ID": "our successors", "SLURM_RESTART_COUNT": "1"}, {"job 7"}),
        (FAMILY | {"TORCHELASTIC_RESTART_COUNT": "2"}, {"us"}),
    ],
)
def test_signatures_of_earlier_attempts(environ, known):
    """An attempt knows what earlier ones of the same run have signed."""
    assert earlier_signatures(environ) == known
    assert known <= {*signatures(FAMILY | JOB).values()}


def test_signatures_without_supervisor():
    """Ranks without a supervisor sign for whoever has started them."""
    first, again = signatures({}), earlier_signatures({"TORCHELASTIC_RESTART_COUNT": "1"})
    assert {*first.values()} == again
    assert len(again) == 1
    torchrun = {"TORCHELASTIC_RUN_ID": "mine", "TORCHELASTIC_RESTART_COUNT": "1"}
    assert earlier_signatures(torchrun) == {"torchrun mine"}
    assert earlier_signatures(torchrun | {"TORCHELASTIC_RUN_ID": "none"}) == again


def checkpoint(run, step, signed):
    run.checkpoint(step).mkdir(parents=True)
    write_manifest(run.checkpoint(step), {"step": step, "signed": signed})


def test_resume_never_made_up_for_by_later_attempt(tmp_path, monkeypatch):
    """Else the second attempt, whose --resume is auto, would go on with the earlier run."""
    monkeypatch.setenv("DSRUN_RUN_ID", "us")
    monkeypatch.setenv("DSRUN_ATTEMPT", "1")
    run = RunFolder(tmp_path)
    asked = resolve(["--model", "demo-t5", "--resume", "never"], tmp_path)
    assert _set_aside_earlier_run(asked, run) is None
    checkpoint(run, 5, ["somebody"])
    aside = _set_aside_earlier_run(asked, run)
    assert [path.name for path in aside.iterdir()] == ["checkpoint-5"]
    checkpoint(run, 3, ["us"])
    assert _set_aside_earlier_run(asked, run) is None
    assert [step for step, _ in run.checkpoints()] == [3]


def test_later_attempt_keeps_unsigned_checkpoint(tmp_path, monkeypatch):
    """A checkpoint without a signature, as older versions wrote them, and --force."""
    monkeypatch.setenv("DSRUN_ATTEMPT", "1")
    run = RunFolder(tmp_path)
    checkpoint(run, 4, [])
    aside = _set_aside_earlier_run(resolve(["--model", "demo-t5", "--resume", "never", "--force"], tmp_path), run)
    assert [path.name for path in aside.iterdir()] == ["checkpoint-4"]


def test_start_times_of_first_attempt():
    known = {"DSRUN_BEGAN": f"{time.time() - 30:.3f}", "DSRUN_QUEUED": "120"}
    found = start_times(known)
    assert 30 <= found["starting_s"] < 60
    assert found["queued_s"] == 120
    assert "queued_s" not in start_times({"DSRUN_BEGAN": known["DSRUN_BEGAN"]})
    assert start_times({**known, "DSRUN_ATTEMPT": "1"}) == {}


def test_rank_without_supervisor_starts_when_its_process_began():
    """Under torchrun or srun: what it took to load and tokenise is not training."""
    began = psutil.Process().create_time()
    assert start_times({})["starting_s"] == pytest.approx(time.time() - began, abs=2)
    assert start_times({"DSRUN_ATTEMPT": "1"}) == {}
