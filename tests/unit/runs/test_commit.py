"""A checkpoint becomes visible by one rename; what a killed save leaves is complete or removed."""

import errno
import os
from pathlib import Path

import pytest

from dsrun.runs import commit
from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import complete_checkpoints, read_manifest, verify, write_manifest
from dsrun.system import files


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    return RunFolder(tmp_path / "run")


def written(run, step, mark="new", *, manifest=True):
    folder = commit.begin(run, step)
    (folder / "model.safetensors").write_text(mark)
    if manifest:
        write_manifest(folder, {"step": step, "mark": mark})
    return folder


def mark(folder):
    return (folder / "model.safetensors").read_text()


def test_checkpoint_invisible_before_commit(run):
    """No checkpoint is visible before the commit."""
    written(run, 5)
    assert run.checkpoints() == []
    assert commit.commit(run, 5) == run.checkpoint(5)
    assert complete_checkpoints(run) == [(5, run.checkpoint(5))]
    assert verify(run.checkpoint(5)) == []


@pytest.mark.parametrize("can_swap", [True, False])
def test_checkpoint_of_same_step_replaced(run, can_swap, monkeypatch):
    """A second checkpoint of the same step replaces the first."""
    if not can_swap:
        monkeypatch.setattr(files, "exchange", lambda one, other: False)
    for name in ("old", "new"):
        written(run, 5, name)
        commit.commit(run, 5)
    assert mark(run.checkpoint(5)) == "new"
    assert read_manifest(run.checkpoint(5))["extra"]["mark"] == "new"
    assert list((run.path / commit.HIDDEN).iterdir()) == []


def test_file_in_place_of_checkpoint_replaced(run):
    """A file in place of the checkpoint folder is replaced."""
    run.checkpoint(5).write_text("no folder")
    written(run, 5)
    commit.commit(run, 5)
    assert mark(run.checkpoint(5)) == "new"


def test_checkpoint_replacement_without_swap_is_crash_safe(run, monkeypatch):
    """Dies before each rename in turn; the next start finds a whole checkpoint, old or new."""
    monkeypatch.setattr(files, "exchange", lambda one, other: False)
    rename, outcomes = Path.rename, []
    for death in (1, 2, 3, 4):
        written(run, 5, "old")
        commit.commit(run, 5)
        written(run, 5, "new")
        calls = 0

        def dying(self, target, death=death):
            nonlocal calls
            calls += 1
            if calls == death:
                raise KeyboardInterrupt
            return rename(self, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", dying)
            try:
                commit.commit(run, 5)
            except KeyboardInterrupt:
                outcomes.append(death)
        commit.tidy(run)
        assert verify(run.checkpoint(5)) == []
        assert not (run.path / commit.HIDDEN).exists()
    assert outcomes == [1, 2, 3]


def test_checkpoint_rename_repeated_by_nfs(run, monkeypatch):
    """A rename that NFS repeats counts as done."""
    written(run, 5)
    rename = Path.rename

    def twice(self, target):
        rename(self, target)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", twice)
    assert commit.commit(run, 5) == run.checkpoint(5)


def test_checkpoint_rename_error_is_raised(run, monkeypatch):
    """Any other error of the rename is raised."""
    written(run, 5)

    def fails(self, target):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(OSError, match="Input/output error"):
        commit.commit(run, 5)


def test_checkpoint_begin_clears_earlier_try(run):
    """A save begins without anything of an earlier try."""
    written(run, 5)
    assert list(commit.begin(run, 5).iterdir()) == []
    assert [each.name for each in (run.path / commit.HIDDEN).iterdir()] == ["checkpoint-5"]


def test_tidy_commits_complete_and_removes_partial_checkpoint(run):
    """Complete checkpoints become visible, partial ones are removed."""
    written(run, 5)
    written(run, 10, manifest=False)
    (run.path / commit.HIDDEN / "deleted-3").mkdir()
    assert commit.tidy(run) == [
        "checkpoint-5 was whole, and is visible now; its run had died just before",
        "removed what was written of checkpoint-10 when its run died",
    ]
    assert complete_checkpoints(run) == [(5, run.checkpoint(5))]
    assert not (run.path / commit.HIDDEN).exists()
    assert commit.tidy(run) == []


def test_complete_hidden_checkpoint_replaces_damaged_one(run):
    """A complete hidden checkpoint replaces a damaged one of the same step."""
    written(run, 5, "old")
    commit.commit(run, 5)
    (run.checkpoint(5) / "model.safetensors").unlink()
    written(run, 5, "new")
    commit.tidy(run)
    assert mark(run.checkpoint(5)) == "new"


def test_hidden_checkpoint_is_not_listed(run):
    """A checkpoint is hidden in one step."""
    written(run, 5)
    commit.commit(run, 5)
    assert mark(commit.hide(run, 5)) == "new"
    assert run.checkpoints() == []
    commit.tidy(run)
    assert run.checkpoints() == []


def test_set_aside_keeps_one_checkpoint_per_step(run):
    """One checkpoint of each step is kept aside."""
    for name in ("old", "new"):
        written(run, 5, name)
        commit.commit(run, 5)
        place = commit.set_aside(run, 5)
    assert mark(place) == "new"
    assert run.checkpoints() == []


@pytest.mark.parametrize(
    ("steps", "keep", "protected", "gone"),
    [
        ([1, 2, 3], 3, {3}, []),
        ([1, 2, 3, 4], 3, {4}, [1]),
        ([4, 3, 2, 1], 2, {1}, [2]),
        ([1, 2, 9], 1, {2}, [1]),  # 2 was saved just now; 9 is of another course
        ([5], 1, set(), []),
        ([], 1, set(), []),
    ],
)
def test_checkpoint_rotation_keeps_newest_and_protected(steps, keep, protected, gone):
    """Rotation keeps the newest and the protected checkpoints."""
    assert commit.superfluous(steps, keep=keep, protected=protected) == gone
