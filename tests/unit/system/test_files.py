import pytest

from dsrun.system.files import exchange, replacing


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
