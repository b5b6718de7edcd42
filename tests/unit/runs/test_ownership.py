"""Who may have written what is about to be unpickled."""

import os
import stat

import pytest

from dsrun.errors import UsageError
from dsrun.runs import attempts
from dsrun.runs.attempts import refuse_untrusted


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "run" / "checkpoint-5"
    (folder / "global_step5").mkdir(parents=True)
    (folder / "global_step5" / "shard.pt").write_bytes(b"pickle")
    (folder / "latest").write_text("global_step5")
    return folder


def test_checkpoint_of_same_user_trusted(checkpoint):
    """The user's own files are trusted."""
    refuse_untrusted(checkpoint)


def test_group_writable_checkpoint_trusted(checkpoint):
    """The group may have write permission."""
    (checkpoint / "latest").chmod(0o664)
    refuse_untrusted(checkpoint)


@pytest.mark.parametrize("name", ["latest", "global_step5", "global_step5/shard.pt", ".", ".."])
def test_world_writable_checkpoint_refused(checkpoint, name):
    """Nothing of a checkpoint may be writable by everybody."""
    path = checkpoint / name
    path.chmod(stat.S_IMODE(path.stat().st_mode) | stat.S_IWOTH)
    with pytest.raises(UsageError, match=r"everybody may write to .*--trust"):
        refuse_untrusted(checkpoint)


def test_sticky_folder_above_checkpoint_trusted(checkpoint):
    """A sticky folder above may be writable by everybody."""
    checkpoint.parent.chmod(0o1777)
    refuse_untrusted(checkpoint)


@pytest.mark.parametrize("name", ["latest", "global_step5/shard.pt", "."])
def test_checkpoint_of_other_user_refused(checkpoint, name, monkeypatch):
    """As root the file is given away; as anybody else, who cannot do that, the test is somebody else."""
    if os.geteuid() == 0:
        os.chown(checkpoint / name, 12345, 12345)
        whose = "12345"
    else:
        whose = str(os.geteuid())
        monkeypatch.setattr(attempts, "_also_me", lambda folder: set())
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(UsageError, match="belongs to user") as caught:
        refuse_untrusted(checkpoint)
    if os.geteuid() == 0:
        assert whose in str(caught.value)


def test_checkpoint_of_root_trusted(checkpoint, monkeypatch):
    """Somebody else looks at the files, and their owner counts as root."""
    monkeypatch.setattr(attempts, "_ROOT", os.geteuid())
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    monkeypatch.setattr(attempts, "_also_me", lambda folder: set())
    refuse_untrusted(checkpoint)


def test_checkpoint_trust_with_nfs_root_squash(checkpoint, monkeypatch):
    """The ownership check copes with file systems that map users.

    Under NFS's root_squash root's own files belong to nobody, and so does every file that it makes there now.
    """
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    monkeypatch.setattr(attempts, "_ROOT", 98765)
    refuse_untrusted(checkpoint)


def test_symlink_as_trusted_as_its_target(checkpoint, tmp_path):
    """A symlink is as trusted as its target."""
    target = tmp_path / "blob"
    target.write_bytes(b"weights")
    (checkpoint / "model.safetensors").symlink_to(target)
    (checkpoint / "loop").symlink_to(checkpoint)
    (checkpoint / "dangling").symlink_to(tmp_path / "nowhere")
    refuse_untrusted(checkpoint)
    target.chmod(0o666)
    with pytest.raises(UsageError, match=r"everybody may write to model\.safetensors"):
        refuse_untrusted(checkpoint)
