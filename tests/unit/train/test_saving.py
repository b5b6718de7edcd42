"""The final model is shown when it is on the disk, and not before."""

from dsrun.train import saving


def test_the_model_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    partial, folder = tmp_path / "model.partial", tmp_path / "model"
    (partial / "code").mkdir(parents=True)
    for name in ("model.safetensors", "code/config.json"):
        (partial / name).write_text("new")
    folder.mkdir()
    (folder / "old").touch()
    synced = []

    def note(path):
        synced.append((path.relative_to(tmp_path).as_posix(), (folder / "old").exists()))

    monkeypatch.setattr(saving, "sync_file", note)
    monkeypatch.setattr(saving, "fsync_folder", note)
    saving._replace(partial, folder)
    assert synced == [
        ("model.partial/code", True),
        ("model.partial/code/config.json", True),
        ("model.partial/model.safetensors", True),
        ("model.partial", True),
        (".", False),
    ]
    assert sorted(path.name for path in folder.iterdir()) == ["code", "model.safetensors"]
    assert not partial.exists()
