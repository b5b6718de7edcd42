"""Which attempt a worker belongs to, and what that does to --resume."""

from __future__ import annotations

import json

import pytest

from dsrun.recipe.resolve import resolve
from dsrun.train.records import attempt, step_of
from dsrun.train.worker import _going_on


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
def test_restarts_and_requeues_are_counted_apart(environ, counts):
    assert attempt(environ) == counts


def test_a_renamed_checkpoint_still_knows_its_step(tmp_path):
    (tmp_path / "trainer_state.json").write_text(json.dumps({"global_step": 42}))
    assert step_of(tmp_path.rename(tmp_path.with_name("the-good-one"))) == 42
    assert step_of(tmp_path / "checkpoint-7") == 7


@pytest.mark.parametrize(
    ("asked", "again"), [("never", "auto"), ("auto", "auto"), ("elsewhere", "elsewhere")]
)
def test_only_never_is_about_the_first_attempt_alone(asked, again, tmp_path, monkeypatch):
    """A checkpoint's folder holds for later attempts too: the run may have died before it saved anything itself."""
    recipe = resolve(["--model", "demo-t5", "--resume", asked], tmp_path)
    assert _going_on(recipe).spec.resume == asked
    monkeypatch.setenv("DSRUN_ATTEMPT", "1")
    assert _going_on(recipe).spec.resume == again
