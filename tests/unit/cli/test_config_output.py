"""Where `dsrun config -o` and `dsrun config upgrade` write: what was there before stays what it was."""

from __future__ import annotations

import json
import os
import stat

import pytest

from dsrun.cli import config, config_upgrade
from dsrun.errors import UsageError

OLD = {"train_batch_size": 8, "zero_optimization": {"stage": 2, "cpu_offload": True}}
WRITERS = {
    "config": lambda out: config.command.main(["-o", out, "--force"], standalone_mode=False),
    "upgrade": lambda out: config_upgrade.command.main(["old.json", "-o", out, "--force"], standalone_mode=False),
}  # fmt: skip


@pytest.fixture(params=WRITERS)
def write(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.json").write_text(json.dumps(OLD))
    return WRITERS[request.param]


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_no_file_is_written_to_and_stays(write, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write("pipe")

    assert json.loads(os.read(reader, 65536))
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    os.close(reader)


def test_a_link_stays_a_link_to_the_new_content(write, tmp_path):
    (tmp_path / "real.json").write_text("mine")
    (tmp_path / "link.json").symlink_to("real.json")
    write("link.json")

    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text())


def test_a_file_keeps_its_permissions(write, tmp_path):
    private = tmp_path / "private.json"
    private.write_text("mine")
    private.chmod(0o600)
    write("private.json")

    assert json.loads(private.read_text())
    assert mode(private) == 0o600


def test_a_read_only_file_is_refused(write, tmp_path):
    kept = tmp_path / "kept.json"
    kept.write_text("mine")
    kept.chmod(0o444)

    with pytest.raises(UsageError, match=r"kept\.json is read-only"):
        write("kept.json")
    assert kept.read_text() == "mine"


def test_links_in_a_circle_are_refused(write, tmp_path):
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")

    with pytest.raises(UsageError, match="symbolic links"):
        write("one")


def test_a_name_that_is_too_long_is_refused(write):
    with pytest.raises(UsageError, match="too long"):
        write("x" * 300)


def test_nothing_else_is_left_or_replaced(write, tmp_path):
    (tmp_path / ".new.json.new").write_text("mine")
    before = {each.name for each in tmp_path.iterdir()}
    write("new.json")

    assert {each.name for each in tmp_path.iterdir()} == before | {"new.json"}
    assert (tmp_path / ".new.json.new").read_text() == "mine"


def test_in_place_follows_a_link_and_refuses_a_read_only_file(tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text(json.dumps(OLD))
    real.chmod(0o640)
    link.symlink_to(real)
    assert config_upgrade.command.main([str(link), "--in-place"], standalone_mode=False) == 0
    assert link.is_symlink()
    assert "offload_optimizer" in real.read_text()
    assert mode(real) == 0o640

    real.write_text(json.dumps(OLD))
    real.chmod(0o440)
    with pytest.raises(UsageError, match="is read-only"):
        config_upgrade.command.main([str(link), "--in-place"], standalone_mode=False)
    assert json.loads(real.read_text()) == OLD
