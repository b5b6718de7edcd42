"""One rank's save, without a process group: what becomes visible, what is left after a failure, and the messages."""

import os
import threading

import pytest
import torch

from dsrun.errors import UsageError
from dsrun.runs import commit
from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import complete_checkpoints, read_manifest, verify
from dsrun.train.base import distributed
from dsrun.train.base.distributed import all_gather_object, all_ready, rank0_first
from dsrun.train.checkpoint import save as saves
from dsrun.train.checkpoint.save import CheckpointSave, SaveFailed
from dsrun.train.checkpoint.snapshot import SnapshotBuffers, write_torch


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    return RunFolder(tmp_path / "run")


def begin(run, step):
    return CheckpointSave(run, step, beat=lambda: None)


def test_checkpoint_invisible_until_save_is_finished(run):
    save = begin(run, 5)
    weights = save.folder / "weights.pt"
    save.write(lambda: torch.save({"a": torch.ones(3)}, weights), weights)
    (save.folder / "latest").write_text("by somebody else")  # DeepSpeed writes a few files by itself
    assert run.checkpoints() == []
    size = save.finish({"zero_stage": 2})
    assert complete_checkpoints(run) == [(5, run.checkpoint(5))]
    assert verify(run.checkpoint(5)) == []
    manifest = read_manifest(run.checkpoint(5))
    assert set(manifest["files"]) == {"weights.pt", "latest"}
    assert manifest["extra"] == {"step": 5, "zero_stage": 2}
    assert size >= manifest["files"]["weights.pt"]["size"]


def fail_with(error):
    def work():
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "said", "cause"),
    [
        (OSError(28, "No space left on device"), "No space left on device", "disk_full"),
        (OSError(5, "Input/output error"), "Input/output error", "disk_error"),
        (
            RuntimeError("[enforce fail at inline_container.cc:672] unexpected pos 576 vs 534"),
            "unexpected pos",
            "disk_full",
        ),
        (RuntimeError("cannot pickle this"), "RuntimeError: cannot pickle this", None),
        (
            saves.SafetensorError("I/O error: Disk quota exceeded (os error 122)"),
            os.strerror(122),
            "disk_full",
        ),
    ],
)
def test_failed_save_keeps_older_checkpoints(run, error, said, cause):
    """A failed write is reported at the end, and the older checkpoints stay."""
    begin(run, 5).finish({})
    save = begin(run, 10)
    partial = save.folder / "shard.pt"
    partial.write_bytes(b"half")
    save.write(fail_with(error), partial)
    assert not partial.exists()
    written = []
    save.write(lambda: written.append("more"))
    assert written == []
    with pytest.raises(SaveFailed, match=r"saving checkpoint-10 failed: rank 0 on .*checkpoint-5 is whole") as caught:
        save.finish({})
    assert said in caught.value.message
    assert caught.value.cause == cause
    assert [step for step, _ in run.checkpoints()] == [5]
    assert not commit.hidden(run, 10).exists()


def in_background(run, step):
    return CheckpointSave(run, step, beat=lambda: None, snapshots=SnapshotBuffers())


def test_tensor_changed_during_background_save(run):
    """The file holds what was there when `store` returned, though it is written later."""
    may_write = threading.Event()

    def dump(state, file):
        assert may_write.wait(60)
        write_torch(state, file)

    save = in_background(run, 5)
    weights = torch.ones(1000)
    save.store(dump, {"weights": weights}, save.folder / "weights.pt")
    weights.zero_()
    save.seal(*save.folder.iterdir())  # as after save_pretrained, which knows nothing of the thread
    assert not save.is_sealed
    may_write.set()
    save.finish({})
    assert not save.short_of_memory
    assert torch.equal(torch.load(run.checkpoint(5) / "weights.pt")["weights"], torch.ones(1000))
    assert verify(run.checkpoint(5)) == []


@pytest.mark.parametrize(
    ("error", "cause"), [(OSError(28, os.strerror(28)), "disk_full"), (TypeError("cannot pickle"), None)]
)
def test_background_save_that_fails_in_its_thread(run, error, cause):
    """It ends as one in the foreground, and nothing is written after it."""
    begin(run, 5).finish({})

    def dump(state, file):
        file.write(b"half")
        raise error

    save = in_background(run, 10)
    save.store(dump, {}, save.folder / "shard.pt")
    save.store(write_torch, {}, save.folder / "next.pt")
    with pytest.raises(SaveFailed, match=r"saving checkpoint-10 failed: rank 0 on .*checkpoint-5 is whole") as caught:
        save.finish({})
    assert str(error.args[-1]) in caught.value.message
    assert caught.value.cause == cause
    assert [step for step, _ in run.checkpoints()] == [5]
    assert not commit.hidden(run, 10).exists()


def test_background_save_without_memory_for_copies(run, monkeypatch):
    """It is written at once."""
    monkeypatch.setattr("dsrun.train.checkpoint.snapshot.memory_available", lambda: 0)
    save = in_background(run, 5)
    weights = torch.ones(1000)
    save.store(write_torch, weights, save.folder / "weights.pt")
    weights.zero_()
    save.finish({})
    assert save.short_of_memory
    assert torch.equal(torch.load(run.checkpoint(5) / "weights.pt"), torch.ones(1000))


def test_failed_save_on_unreadable_disk(run, monkeypatch):
    """A disk that cannot even be read does not hide the reason."""
    save = begin(run, 5)
    save.write(fail_with(OSError(116, "Stale file handle")))
    monkeypatch.setattr(saves, "newest_complete", lambda run: fail_with(OSError(5, "I/O error"))())
    with pytest.raises(SaveFailed, match=r"Stale file handle; the run folder cannot be read"):
        save.finish({})


def test_failed_save_probes_for_full_disk(run, monkeypatch):
    """torch tells of a full disk in words without an errno."""
    save = begin(run, 5)
    monkeypatch.setattr(saves, "_probe", lambda folder: 28)
    save.write(fail_with(RuntimeError("unexpected pos 576 vs 534")))
    with pytest.raises(SaveFailed, match="No space left on device; there is no earlier checkpoint"):
        save.finish({})


def test_disk_probe_returns_errno(tmp_path):
    assert saves._probe(tmp_path) is None
    assert saves._probe(tmp_path / "gone") == 2
    assert list(tmp_path.iterdir()) == []


def test_save_into_unwritable_run_folder(run):
    (run.path / commit.HIDDEN).write_text("a file in the way")
    with pytest.raises(SaveFailed, match=r"Not a directory|File exists"):
        begin(run, 5)


def test_save_without_shared_run_folder_rejected(run, monkeypatch):
    """A file that rank 0 cannot see was written elsewhere."""
    save = begin(run, 5)
    theirs = ({"global_step5/shard.pt": {"size": 3, "crc32": "0" * 8}}, None, False)
    monkeypatch.setattr(saves, "all_gather_object", lambda mine: [mine, theirs])
    with pytest.raises(UsageError, match=r"do not share the run folder .*global_step5/shard.pt elsewhere"):
        save.finish({})
    assert run.checkpoints() == []


def test_collectives_of_a_single_rank():
    """A single rank agrees with itself."""
    assert all_gather_object("word") == ["word"]
    assert rank0_first(lambda: 7) == 7
    assert all_ready(True)
    assert not all_ready(False)
    with pytest.raises(UsageError, match="no"):
        rank0_first(fail_with(UsageError("no")))
    with pytest.raises(PermissionError):
        rank0_first(fail_with(PermissionError("no")))


@pytest.mark.parametrize("error", [UsageError("no"), PermissionError("no")])
def test_other_ranks_get_the_error_of_rank_0(monkeypatch, error):
    """They would wait for its answer for ever."""
    sent = []
    monkeypatch.setattr(distributed, "ranks", lambda: 2)
    monkeypatch.setattr(distributed.dist, "broadcast_object_list", lambda answer, src: sent.append((src, *answer)))
    with pytest.raises(type(error)):
        rank0_first(fail_with(error))
    assert sent == [(0, None, error)]
