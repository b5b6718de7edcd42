"""What the Trainer's side of a save does when it fails, without a model."""

import errno
import os
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerControl

from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import complete_checkpoints
from dsrun.train.checkpoint.checkpointing import CheckpointingTrainer, SavingPolicy, _AfterEachStep
from dsrun.train.checkpoint.save import SaveFailed
from dsrun.train.checkpoint.snapshot import SnapshotBuffers, write_torch
from dsrun.train.loop.trainer import RunTrainer


class Stub(CheckpointingTrainer):
    """A Trainer as far as a save goes: its n-th write fails with the n-th of `errors`, where that is not 0."""

    def __init__(self, run, *errors, background=False, **state):
        self.said, self.events = [], []
        self.saving = SavingPolicy(run=run, background=background, notify=self.said.append)
        known = {"global_step": 10, "max_steps": 100, "best_global_step": None, "best_model_checkpoint": None}
        self.state = SimpleNamespace(**known | state)
        self.args = SimpleNamespace()
        self.interrupted, self.is_in_train = False, True
        self.seconds_not_training = 0.0
        self.on_checkpoint = lambda phase, folder, *_rest, **_details: self.events.append(f"{phase} {folder.name}")
        self.errors = list(errors)

    def _write(self, save):
        def work():
            weights.write_bytes(bytes(1000))
            number = self.errors.pop(0) if self.errors else 0
            if number:
                raise OSError(number, os.strerror(number), str(weights))

        weights = save.folder / "model.safetensors"
        save.write(work, weights)

    def save(self):
        self._save_checkpoint(None, None)

    def step(self):
        """The next optimizer step; saves where one is due."""
        self.state.global_step += 1
        control = TrainerControl()
        _AfterEachStep(self).on_step_end(self.args, self.state, control)
        if control.should_save:
            self.save()


class OnAFullDisk(Stub):
    """One whose DeepSpeed cannot write one of its own small files."""

    def _write(self, save):
        (save.folder / "model.safetensors").write_bytes(bytes(1000))
        (save.folder / "global_step10").mkdir()
        raise OSError(28, os.strerror(28), str(save.folder / "latest"))


def test_checkpoint_on_full_disk_leaves_nothing_behind(tmp_path):
    """When DeepSpeed cannot write a file of its own, nothing is left behind."""
    run = RunFolder.create(tmp_path / "run")
    with pytest.raises(SaveFailed, match=f"checkpoint-10 failed: {os.strerror(28)}"):
        OnAFullDisk(run)._save_checkpoint(None, None)
    assert not [*(run.path / ".saving").iterdir()]


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(tmp_path / "run")


def steps(run):
    return [step for step, _ in complete_checkpoints(run)]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_save_that_failed_by_passing_error_tried_after_next_step(run, number):
    trainer = Stub(run, number)
    trainer.save()
    assert trainer.events == ["begin checkpoint-10", "failed checkpoint-10"]
    assert trainer.said[0].startswith("saving checkpoint-10 failed: rank 0 on ")
    assert trainer.said[0].endswith(f"{os.strerror(number)}; there is no earlier checkpoint; it is tried once more")
    trainer.step()
    trainer.step()
    assert trainer.events[2:] == ["begin checkpoint-11", "visible checkpoint-11", "end checkpoint-11"]
    assert steps(run) == [11]
    trainer.errors = [number]  # a later one is forgiven again
    trainer.save()
    assert len(trainer.said) == 2


def test_save_that_fails_twice_ends_the_run(run):
    trainer = Stub(run, errno.EIO, errno.EIO)
    trainer.save()
    with pytest.raises(SaveFailed, match=r"saving checkpoint-11 failed: .*Input/output error") as raised:
        trainer.step()
    assert raised.value.cause == "disk_error"
    assert not [*(run.path / ".saving").iterdir()]


@pytest.mark.parametrize(
    ("number", "cause"),
    [(errno.ENOSPC, "disk_full"), (errno.EDQUOT, "disk_full"), (errno.EFBIG, "disk_full"), (errno.EROFS, "disk_error")],
)
def test_save_on_full_or_read_only_disk_ends_the_run(run, number, cause):
    with pytest.raises(SaveFailed, match=os.strerror(number)) as raised:
        Stub(run, number).save()
    assert raised.value.cause == cause


@pytest.mark.parametrize("last", ["last step", "interrupted", "best", "after training"])
def test_save_without_a_next_step_tried_at_once(run, last):
    """At the end, before a preemption, and where the weights are the best so far."""
    state = {"last step": {"max_steps": 10}, "best": {"best_global_step": 10}}.get(last, {})
    trainer = Stub(run, errno.EIO, **state)
    trainer.interrupted, trainer.is_in_train = last == "interrupted", last != "after training"
    trainer.save()
    assert steps(run) == [10]
    assert trainer.events.count("end checkpoint-10") == 1


def test_save_in_background_without_memory_is_told_once(run, monkeypatch):
    monkeypatch.setattr("dsrun.train.checkpoint.snapshot.memory_available", lambda: 0)
    trainer = Stub(run, background=True)
    trainer._snapshots = SnapshotBuffers()
    trainer._write = lambda save: save.store(write_torch, torch.ones(9), save.folder / "model.pt")
    for _ in range(2):
        trainer.state.global_step += 1
        trainer.save()
        trainer.finish_saving()
    assert steps(run) == [12, 11]
    assert [line.partition(":")[0] for line in trainer.said] == ["--async-save"]


def test_save_in_background_tried_again(run, monkeypatch):
    """fsync fails while training goes on already."""
    trainer = Stub(run, background=True)
    synced = iter([OSError(errno.EIO, os.strerror(errno.EIO))])

    def sync(_path):
        for error in synced:
            raise error

    monkeypatch.setattr("dsrun.runs.checksum.sync_file", sync)
    trainer.save()
    while not trainer.said:
        trainer.step()
        time.sleep(0.01)
    assert "Input/output error" in trainer.said[0]
    assert steps(run) == [trainer.state.global_step]


class Ending(Stub, RunTrainer):
    """One whose training ends before max_steps; `kept` is what was promised, and whether it was there."""

    def __init__(self, run, *errors):
        Stub.__init__(self, run, *errors, background=True)
        self.kept = []
        stopping = SimpleNamespace(keep=lambda step, _path: self.kept.append((step, run.checkpoint(step).exists())))
        progress = SimpleNamespace(saved=10)
        self.context = SimpleNamespace(heart=SimpleNamespace(enter=str), stopping=stopping, progress=progress)
        self.any_rank_stops = bool
        self._remover = ThreadPoolExecutor(1)
        self._snapshots = SnapshotBuffers()
        self.loss_state = SimpleNamespace(note=str)


@pytest.mark.parametrize("errors", [(), (errno.EIO,)])
def test_checkpoint_of_run_that_stopped_early_promised_once_visible(run, monkeypatch, errors):
    monkeypatch.setattr("transformers.Trainer._finalize_training", lambda *_: None)
    trainer = Ending(run, *errors)
    trainer.save()
    assert not steps(run)
    trainer._finalize_training()
    assert trainer.kept == [(10, True)]


def test_save_after_training_not_left_to_the_background(run):
    trainer = Stub(run, background=True)
    trainer._snapshots, trainer.is_in_train = SnapshotBuffers(), False
    trainer.save()
    assert steps(run) == [10]
