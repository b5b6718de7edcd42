"""What `dsrun export` checks before anything heavy is loaded: the source, the target, the size of files."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dsrun.checkpoints import export_source
from dsrun.cli.export import refuse_target, shard_bytes
from dsrun.errors import FindingsError, UsageError
from dsrun.runs.manifest import write_manifest


def make_checkpoint(folder, *, damaged=False, manifest=True):
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "trainer_state.json").write_text("{}")
    if manifest:
        write_manifest(folder, {"step": 1})
    if damaged:
        (folder / "model.safetensors").write_bytes(b"weighty")
    return folder


def make_run(run, *steps, damaged=(), finished=False):
    run.mkdir()
    (run / "run.json").write_text("{}")
    for step in steps:
        make_checkpoint(run / f"checkpoint-{step}", damaged=step in damaged)
    if finished:
        (run / "FINISHED").write_text("{}")
        (run / "model").mkdir()
    return run


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("5GB", 5 * 10**9),
        ("500 MB", 5 * 10**8),
        ("2GiB", 2 * 2**30),
        ("1.5k", 1500),
        ("7", 7),
        ("1TB", 10**12),
    ],
)
def test_shard_size_notations(text, bytes_):
    assert shard_bytes(text) == bytes_


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "5 apples", "1e9"])
def test_invalid_shard_size_is_refused(text):
    with pytest.raises(UsageError, match="is not a size"):
        shard_bytes(text)


def test_export_source_of_finished_and_lora_run(tmp_path):
    """A finished run exports its model, and a LoRA run its adapter."""
    run = make_run(tmp_path / "run", 1, finished=True)
    assert export_source(run, merge_lora=False, notify=pytest.fail) == run / "model"
    (run / "adapter").mkdir()
    assert export_source(run, merge_lora=False, notify=pytest.fail) == run / "adapter"
    assert export_source(run, merge_lora=True, notify=pytest.fail) == run / "model"


def test_export_source_of_unfinished_run_is_newest_checkpoint(tmp_path):
    """An unfinished run exports its newest checkpoint that verifies."""
    notes: list[str] = []
    run = make_run(tmp_path / "run", 1, 2, 10, damaged=[10])
    assert export_source(run, merge_lora=False, notify=notes.append) == run / "checkpoint-2"
    message = "\n".join(notes)
    assert "skipped checkpoint-10: model.safetensors: contents differ" in message
    assert "exporting checkpoint-2" in message


def test_export_run_without_valid_checkpoint(tmp_path):
    run = make_run(tmp_path / "run", 3, damaged=[3])
    with pytest.raises(UsageError, match="no valid checkpoint"):
        export_source(run, merge_lora=False, notify=print)


def test_export_checkpoint_must_verify(tmp_path):
    sound = make_checkpoint(tmp_path / "checkpoint-1")
    assert export_source(sound, merge_lora=False, notify=pytest.fail) == sound
    with pytest.raises(FindingsError, match=r"model\.safetensors"):
        export_source(make_checkpoint(tmp_path / "checkpoint-2", damaged=True), merge_lora=False, notify=pytest.fail)


def test_export_checkpoint_without_manifest_gives_notice(tmp_path):
    notes: list[str] = []
    theirs = make_checkpoint(tmp_path / "checkpoint-1", manifest=False)
    assert export_source(theirs, merge_lora=False, notify=notes.append) == theirs
    assert "without a manifest" in notes[0]


def test_export_source_neither_run_nor_checkpoint(tmp_path):
    with pytest.raises(UsageError, match="neither a run folder nor a checkpoint"):
        export_source(tmp_path, merge_lora=False, notify=pytest.fail)
    with pytest.raises(UsageError, match="there is no folder"):
        export_source(tmp_path / "nowhere", merge_lora=False, notify=pytest.fail)


def test_export_target_must_be_new_or_empty(tmp_path):
    def refuse(to, *, force):
        refuse_target(to, tmp_path.parent / "run", force=force)

    refuse(tmp_path / "new", force=False)
    (tmp_path / "empty").mkdir()
    refuse(tmp_path / "empty", force=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        refuse(tmp_path / "file", force=True)
    with pytest.raises(UsageError, match="is not empty"):
        refuse(tmp_path, force=False)
    refuse(tmp_path, force=True)


@pytest.mark.parametrize("place", ["run", "run/checkpoint-1", "."])
def test_export_force_does_not_delete_the_source(place, tmp_path, monkeypatch):
    """Neither as the folder itself nor with one above it, named as one likes."""
    run = make_run(tmp_path / "run", 1)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="would replace"):
        refuse_target(tmp_path / place, run / "checkpoint-1", force=True)
    with pytest.raises(UsageError, match="would replace"):
        refuse_target(type(run)(place), run / "checkpoint-1", force=True)


def test_export_force_does_not_delete_another_run(tmp_path):
    other = make_run(tmp_path / "other", 1)
    with pytest.raises(UsageError, match="is a run folder"):
        refuse_target(other, tmp_path / "run", force=True)


def test_export_errors_are_one_line(tmp_path):
    source = make_checkpoint(tmp_path / "checkpoint-1", damaged=True)
    for args, code in (
        ([source, "--to", tmp_path / "out"], 3),
        ([tmp_path / "nowhere", "--to", tmp_path / "out"], 2),
        ([source, "--to", tmp_path], 2),
        ([source], 2),
        ([source, "--to", tmp_path / "out", "--dtype", "int3"], 2),
        ([source, "--to", tmp_path / "out", "--max-shard-size", "big"], 2),
    ):
        argv = [sys.executable, "-m", "dsrun", "export", *map(str, args)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
