from __future__ import annotations

import json
from datetime import datetime

import pytest

from dsrun.errors import UsageError
from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import write_manifest
from dsrun.train.resume import find_checkpoint, set_earlier_run_aside

NOW = datetime(2026, 11, 21, 4, 48)


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(tmp_path / "run")


def checkpoint(run, step, *, world_size=2, stage=2, model_type="t5", complete=True):
    folder = run.checkpoint(step)
    folder.mkdir()
    (folder / "trainer_state.json").write_text("{}")
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    if complete:
        write_manifest(folder, {"step": step, "world_size": world_size, "zero_stage": stage})
    return folder


def find(run, resume="auto", said=None):
    say = (said if said is not None else []).append
    return find_checkpoint(resume, run, world_size=2, stage=2, model_type="t5", say=say)


def test_a_fresh_folder_starts_at_zero(run):
    assert find(run) is None


def test_the_newest_complete_checkpoint_wins_and_torn_ones_are_named(run):
    checkpoint(run, 5)
    newest = checkpoint(run, 10)
    checkpoint(run, 15, complete=False)
    said = []
    assert find(run, said=said) == newest
    assert len(said) == 2
    assert "checkpoint-15" in said[0]
    assert said[1] == f"resuming from {newest}"


def test_never_ignores_checkpoints(run):
    checkpoint(run, 5)
    assert find(run, "never") is None


def test_a_given_folder_must_be_a_complete_checkpoint(run):
    older, torn = checkpoint(run, 5), checkpoint(run, 10)
    (torn / "trainer_state.json").write_text("cut")
    assert find(run, str(older)) == older
    with pytest.raises(UsageError, match="incomplete"):
        find(run, str(torn))
    with pytest.raises(UsageError, match="no checkpoint there"):
        find(run, str(run.path))


def test_another_world_size_is_refused_with_the_one_that_works(run):
    checkpoint(run, 5, world_size=4)
    with pytest.raises(UsageError, match=r"saved by 4 ranks, and this run has 2 .*--nproc 4"):
        find(run)


def test_another_stage_is_refused_with_the_one_that_works(run):
    checkpoint(run, 5, stage=3)
    with pytest.raises(UsageError, match=r"saved under ZeRO-3, and this run uses ZeRO-2 .*--zero 3"):
        find(run)


def test_another_kind_of_model_is_refused(run):
    checkpoint(run, 5, model_type="llama")
    with pytest.raises(UsageError, match="holds a llama model, and this run trains a t5 model"):
        find(run)


@pytest.mark.parametrize("discard", [False, True])
def test_starting_anew_keeps_or_discards_the_earlier_results(run, discard):
    checkpoint(run, 5)
    run.metrics.write_text("{}\n")
    (run.logs / "rank-0.attempt-0.log").write_text("words")
    aside = set_earlier_run_aside(run, NOW, discard=discard)
    assert not run.checkpoint(5).exists()
    assert not run.metrics.exists()
    assert (run.logs / "rank-0.attempt-0.log").exists()
    if discard:
        assert aside is None
    else:
        assert (aside / "checkpoint-5" / "manifest.json").exists()
        assert (aside / "metrics.jsonl").exists()
    assert find(run) is None


def test_nothing_to_set_aside_leaves_no_folder(run):
    assert set_earlier_run_aside(run, NOW, discard=False) is None
    assert not list(run.path.glob("earlier-*"))
