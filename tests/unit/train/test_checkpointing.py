"""What the Trainer's side of a save does when it fails, without a model."""

import os
from types import SimpleNamespace

import pytest

from dsrun.runs.folder import RunFolder
from dsrun.train.checkpoint.checkpointing import Checkpointing, Saving
from dsrun.train.checkpoint.save import SaveFailed


class OnAFullDisk(Checkpointing):
    """A Trainer as far as a save goes, whose DeepSpeed cannot write one of its own small files."""

    def __init__(self, run):
        self.saving = Saving(run=run)
        self.state = SimpleNamespace(global_step=10)
        self.on_checkpoint = lambda *_arguments, **_details: None

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
