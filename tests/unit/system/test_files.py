from pathlib import Path

import pytest

from dsrun.system import files
from dsrun.system.files import exchange, replace_folder, replacing


def test_exchange_swaps_folders(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "is").write_text(name)
    assert exchange(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "one" / "is").read_text() == "other"
    assert (tmp_path / "other" / "is").read_text() == "one"


def test_exchange_with_missing_folder(tmp_path):
    (tmp_path / "one").mkdir()
    assert not exchange(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "one").is_dir()


def folders(root, *names):
    for name in names:
        (root / name).mkdir()
        (root / name / "is").write_text(name)
    return [root / name for name in names]


def left(root):
    return {path.name: (path / "is").read_text() for path in root.iterdir()}


@pytest.mark.parametrize("can_swap", [True, False])
@pytest.mark.parametrize("there", ["folder", "empty folder", "file", "link", "nothing"])
def test_replace_folder(tmp_path, monkeypatch, there, can_swap):
    """Whatever has the name gives way, and nothing is left of it; what a link leads to stays."""
    if not can_swap:
        monkeypatch.setattr(files, "exchange", lambda one, other: False)
    target = tmp_path / "run" / "target"
    target.parent.mkdir()
    folders(tmp_path, "elsewhere")
    [new] = folders(target.parent, "new")
    folders(target.parent, ".target.old")
    if there == "file":
        target.touch()
    elif there == "link":
        target.symlink_to(tmp_path / "elsewhere")
    elif there != "nothing":
        target.mkdir()
        if there == "folder":
            (target / "is").write_text("old")
    replace_folder(new, target)
    assert left(target.parent) == {"target": "new"}
    assert (tmp_path / "elsewhere" / "is").exists()


@pytest.mark.parametrize("death", [1, 2, 3, 4, 5, 6])
def test_replaced_folder_there_at_every_moment(tmp_path, monkeypatch, death):
    """Dies before each rename and deletion in turn: the name is that of a whole folder, and the next call cleans up."""
    new, target = folders(tmp_path, "new", "target")
    calls = 0

    def dying(function):
        def call(*args, **options):
            nonlocal calls
            calls += 1
            if calls == death:
                raise KeyboardInterrupt
            return function(*args, **options)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", dying(Path.rename))
        for name in ("exchange", "delete_tree"):
            patch.setattr(files, name, dying(getattr(files, name)))
        if death > 4:
            replace_folder(new, target)
        else:
            with pytest.raises(KeyboardInterrupt):
                replace_folder(new, target)
    assert (target / "is").read_text() == ("target" if death < 3 else "new")
    if new.exists():
        replace_folder(new, target)
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_replacing_swaps_whole_file_in(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(path) as partial:
        partial.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_replacing_keeps_old_file_where_nothing_was_written(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(FileNotFoundError), replacing(path):
        pass  # nothing was written
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
