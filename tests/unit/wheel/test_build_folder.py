"""The folder a wheel is compiled in."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dsrun.wheel.compile.cached import build_folder, preferred_folder

KEY = "0123456789abcdef0123"

HOLD = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from dsrun.wheel.compile.cached import build_folder
with build_folder(sys.argv[2]) as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The system's temporary folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_build_directory_of_request_is_removed(temporary):
    """The same request has the same build directory, and nothing of it is left."""
    with build_folder(KEY) as folder:
        assert folder == preferred_folder(KEY) == temporary / f"dsrun-wheel-{KEY}"
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "deep").mkdir()
    assert list(temporary.iterdir()) == []


def test_build_directory_is_removed_on_failure(temporary):
    with pytest.raises(KeyboardInterrupt), build_folder(KEY):
        raise KeyboardInterrupt
    assert list(temporary.iterdir()) == []


def test_build_directory_keep_and_reuse(temporary):
    """Kept when asked to, and empty the next time."""
    with build_folder(KEY, keep=True) as folder:
        (folder / "trees").mkdir()
        (folder / "link").symlink_to("/nowhere")
    assert folder.is_dir()
    with build_folder(KEY) as again:
        assert again == folder
        assert list(again.iterdir()) == []


def test_build_directory_in_use_is_left_alone(temporary):
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(temporary), KEY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        theirs = other.stdout.readline().strip()
        (temporary / f"dsrun-wheel-{KEY}" / "object.o").touch()
        with build_folder(KEY) as mine:
            assert str(mine) != theirs
            assert mine.parent == temporary
        assert (temporary / f"dsrun-wheel-{KEY}" / "object.o").exists()
    finally:
        other.communicate("")
    assert list(temporary.iterdir()) == []


def test_build_directory_refuses_symlink_and_open_mode(temporary):
    """A symlink, or a folder others may write, is not used as the build directory."""
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    preferred_folder(KEY).symlink_to(elsewhere)
    with build_folder(KEY) as folder:
        assert folder != preferred_folder(KEY)
    preferred_folder(KEY).unlink()
    preferred_folder(KEY).mkdir()
    preferred_folder(KEY).chmod(0o777)
    with build_folder(KEY) as folder:
        assert folder != preferred_folder(KEY)
    assert (elsewhere / "precious").exists()


def test_build_directory_avoids_tmpdir_with_spaces(temporary, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "two words"))
    assert preferred_folder(KEY) == Path(f"/tmp/dsrun-wheel-{KEY}")
