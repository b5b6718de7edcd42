"""Where `dsrun config -o` and `dsrun config upgrade` write: what was there before is kept."""

from __future__ import annotations

import json
import os
import stat

import pytest

from dsrun.cli.config import command as config_command
from dsrun.cli.options import declared_in
from dsrun.errors import UsageError

UPGRADE = declared_in("config/upgrade.toml")
OLD = {"train_batch_size": 8, "zero_optimization": {"stage": 2, "cpu_offload": True}}
WRITERS = {
    "config": lambda out: config_command.command.main(["-o", out, "--force"], standalone_mode=False),
    "upgrade": lambda out: UPGRADE.main(["old.json", "-o", out, "--force"], standalone_mode=False),
}  # fmt: skip


@pytest.fixture(params=WRITERS)
def write(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.json").write_text(json.dumps(OLD))
    return WRITERS[request.param]


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_config_output_to_pipe_keeps_pipe(write, tmp_path):
    """A pipe is written to, and stays a pipe."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write("pipe")

    assert json.loads(os.read(reader, 65536))
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    os.close(reader)


def test_config_output_follows_symlink(write, tmp_path):
    """A symlink stays one, and its target gets the new content."""
    (tmp_path / "real.json").write_text("mine")
    (tmp_path / "link.json").symlink_to("real.json")
    write("link.json")

    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text())


def test_config_output_keeps_file_mode(write, tmp_path):
    """A file keeps its permissions."""
    private = tmp_path / "private.json"
    private.write_text("mine")
    private.chmod(0o600)
    write("private.json")

    assert json.loads(private.read_text())
    assert mode(private) == 0o600


def test_config_output_read_only_file_refused(write, tmp_path):
    """A read-only file is refused."""
    kept = tmp_path / "kept.json"
    kept.write_text("mine")
    kept.chmod(0o444)

    with pytest.raises(UsageError, match=r"kept\.json is read-only"):
        write("kept.json")
    assert kept.read_text() == "mine"


def test_config_output_symlink_loop_refused(write, tmp_path):
    """Symlinks in a circle are refused."""
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")

    with pytest.raises(UsageError, match="symbolic links"):
        write("one")


def test_config_output_name_too_long_refused(write):
    """A name that is too long is refused."""
    with pytest.raises(UsageError, match="too long"):
        write("x" * 300)


def test_config_output_leaves_no_other_file(write, tmp_path):
    """No other file is left behind or replaced."""
    (tmp_path / ".new.json.new").write_text("mine")
    before = {each.name for each in tmp_path.iterdir()}
    write("new.json")

    assert {each.name for each in tmp_path.iterdir()} == before | {"new.json"}
    assert (tmp_path / ".new.json.new").read_text() == "mine"


def test_config_upgrade_in_place_symlink_and_read_only_file(tmp_path):
    """--in-place follows a symlink, and refuses a read-only file."""
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text(json.dumps(OLD))
    real.chmod(0o640)
    link.symlink_to(real)
    assert UPGRADE.main([str(link), "--in-place"], standalone_mode=False) == 0
    assert link.is_symlink()
    assert "offload_optimizer" in real.read_text()
    assert mode(real) == 0o640

    real.write_text(json.dumps(OLD))
    real.chmod(0o440)
    with pytest.raises(UsageError, match="is read-only"):
        UPGRADE.main([str(link), "--in-place"], standalone_mode=False)
    assert json.loads(real.read_text()) == OLD
