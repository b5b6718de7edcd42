"""The folder a wheel is compiled in."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dsrun.wheel.compile.cached import build_folder, build_root

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


def test_build_directory_is_private_and_removed(temporary):
    with build_folder(KEY) as folder:
        assert (folder.parent, folder.name[:-8]) == (temporary, f"dsrun-wheel-{KEY}-")
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "deep").mkdir()
    assert list(temporary.iterdir()) == []


def test_build_directory_is_removed_on_failure(temporary):
    with pytest.raises(KeyboardInterrupt), build_folder(KEY):
        raise KeyboardInterrupt
    assert list(temporary.iterdir()) == []


def test_build_directory_is_kept_on_request(temporary):
    """And stays when the same wheel is built again."""
    with build_folder(KEY, keep=True) as folder:
        (folder / "trees").mkdir()
    with build_folder(KEY) as again:
        assert again != folder
    assert list(temporary.iterdir()) == [folder]
    assert (folder / "trees").is_dir()


def holder(temporary):
    """Another process with a build folder of the same request, and that folder."""
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(temporary), KEY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    folder = Path(other.stdout.readline().strip())
    (folder / "object.o").touch()
    return other, folder


def test_build_directory_in_use_is_left_alone(temporary):
    other, theirs = holder(temporary)
    try:
        with build_folder(KEY) as mine:
            assert mine != theirs
        assert (theirs / "object.o").exists()
    finally:
        other.communicate("")
    assert list(temporary.iterdir()) == []


def test_build_directory_of_killed_build_is_removed(temporary):
    other, theirs = holder(temporary)
    other.kill()
    other.communicate()
    assert theirs.exists()
    with build_folder("another request"):
        assert theirs.exists()
    with build_folder(KEY):
        assert not theirs.exists()
    assert list(temporary.iterdir()) == []


def test_build_directory_avoids_tmpdir_with_spaces(temporary, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "two words"))
    assert build_root() == Path("/tmp")
