"""Who may have written what is about to be unpickled."""

import os
import stat

import pytest

from dsrun.errors import UsageError
from dsrun.runs import trust
from dsrun.runs.trust import refuse_untrusted


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "run" / "checkpoint-5"
    (folder / "global_step5").mkdir(parents=True)
    (folder / "global_step5" / "shard.pt").write_bytes(b"pickle")
    (folder / "latest").write_text("global_step5")
    return folder


def test_ones_own_files_are_trusted(checkpoint):
    refuse_untrusted(checkpoint)


def test_a_group_may_write(checkpoint):
    (checkpoint / "latest").chmod(0o664)
    refuse_untrusted(checkpoint)


@pytest.mark.parametrize("name", ["latest", "global_step5", "global_step5/shard.pt", ".", ".."])
def test_what_everybody_may_write_is_refused(checkpoint, name):
    path = checkpoint / name
    path.chmod(stat.S_IMODE(path.stat().st_mode) | stat.S_IWOTH)
    with pytest.raises(UsageError, match=r"everybody may write to .*--trust"):
        refuse_untrusted(checkpoint)


def test_a_sticky_folder_above_is_fine(checkpoint):
    checkpoint.parent.chmod(0o1777)
    refuse_untrusted(checkpoint)


@pytest.mark.parametrize("name", ["latest", "global_step5/shard.pt", "."])
def test_another_users_file_is_refused(checkpoint, name, monkeypatch):
    """As root the file is given away; as anybody else, who cannot do that, the test is somebody else."""
    if os.geteuid() == 0:
        os.chown(checkpoint / name, 12345, 12345)
        whose = "12345"
    else:
        whose = str(os.geteuid())
        monkeypatch.setattr(trust, "_also_me", lambda folder: set())
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(UsageError, match="belongs to user") as caught:
        refuse_untrusted(checkpoint)
    if os.geteuid() == 0:
        assert whose in str(caught.value)


def test_roots_files_are_accepted(checkpoint, monkeypatch):
    """Somebody else looks at the files, and their owner counts as root."""
    monkeypatch.setattr(trust, "_ROOT", os.geteuid())
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    monkeypatch.setattr(trust, "_also_me", lambda folder: set())
    refuse_untrusted(checkpoint)


def test_a_file_system_that_maps_users_is_understood(checkpoint, monkeypatch):
    """Under NFS's root_squash root's own files belong to nobody, and so does every file that it makes there now."""
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    monkeypatch.setattr(trust, "_ROOT", 98765)
    refuse_untrusted(checkpoint)


def test_a_link_is_as_trusted_as_what_it_leads_to(checkpoint, tmp_path):
    target = tmp_path / "blob"
    target.write_bytes(b"weights")
    (checkpoint / "model.safetensors").symlink_to(target)
    (checkpoint / "loop").symlink_to(checkpoint)
    (checkpoint / "dangling").symlink_to(tmp_path / "nowhere")
    refuse_untrusted(checkpoint)
    target.chmod(0o666)
    with pytest.raises(UsageError, match=r"everybody may write to model\.safetensors"):
        refuse_untrusted(checkpoint)
