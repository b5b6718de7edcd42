"""The final model becomes visible when it is on the disk, and not before."""

from dsrun.train.checkpoint import final


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
