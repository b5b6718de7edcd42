"""The final model becomes visible when it is on the disk, and not before."""

from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import save_file

from dsrun.train.export import final


def test_final_model_synced_before_rename(tmp_path, monkeypatch):
    """The model is on the disk before it has its name."""
    partial, folder = tmp_path / "model.partial", tmp_path / "model"
    (partial / "code").mkdir(parents=True)
    for name in ("model.safetensors", "code/config.json"):
        (partial / name).write_text("new")
    folder.mkdir()
    (folder / "old").touch()
    synced = []

    def note(path):
        synced.append((path.relative_to(tmp_path).as_posix(), (folder / "old").exists()))

    monkeypatch.setattr(final, "sync_file", note)
    monkeypatch.setattr(final, "fsync_folder", note)
    final._replace(partial, folder)
    assert synced == [
        ("model.partial/code", True),
        ("model.partial/code/config.json", True),
        ("model.partial/model.safetensors", True),
        ("model.partial", True),
        (".", False),
    ]
    assert sorted(path.name for path in folder.iterdir()) == ["code", "model.safetensors"]
    assert not partial.exists()


def test_final_model_without_remains_of_killed_save(tmp_path):
    """A save that died had cut the weights into other files."""
    partial, folder = tmp_path / "model.partial", tmp_path / "model"
    partial.mkdir()
    (partial / "model-00002-of-00002.safetensors").touch()

    def save_model(path):
        Path(path).mkdir()
        save_file({"weight": torch.ones(2)}, Path(path, "model.safetensors"))

    trainer = SimpleNamespace(args=SimpleNamespace(should_save=True), save_model=save_model)
    final.save_final(trainer, folder, "causal-lm", lora=False)
    assert [path.name for path in folder.iterdir()] == ["model.safetensors"]
