from dsrun.system.rename import exchange


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
