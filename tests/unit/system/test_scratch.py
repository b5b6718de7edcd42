"""Temporary folders of dsrun's processes: what keeps them, and who removes what killed ones have left."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dsrun.system.host import MountPoint
from dsrun.system.process import scratch
from dsrun.system.process.scratch import OWNER, left_folders, remove_left, scratch_folder

PACKAGE = Path(scratch.__file__).parents[2]
HOLD = """
import sys
from pathlib import Path
from dsrun.system.process.scratch import scratch_folder
with scratch_folder("dsrun-held-", Path(sys.argv[1]), keep=len(sys.argv) > 2) as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The system's temporary folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def holder(temporary, *words):
    """Another process with such a folder, and that folder."""
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(temporary), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    folder = Path(other.stdout.readline().strip())
    (folder / "object.o").touch()
    return other, folder


def killed(temporary, *words):
    other, folder = holder(temporary, *words)
    other.kill()
    other.communicate()
    return folder


def test_folder_is_private_and_removed(temporary):
    with scratch_folder("dsrun-x-") as folder:
        assert (folder.parent, folder.name[:-8]) == (temporary, "dsrun-x-")
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "deep").mkdir()
    assert list(temporary.iterdir()) == []


def test_folder_is_removed_on_failure(temporary):
    with pytest.raises(KeyboardInterrupt), scratch_folder("dsrun-x-"):
        raise KeyboardInterrupt
    assert list(temporary.iterdir()) == []


def test_kept_folder_stays_whoever_was_killed(temporary):
    with scratch_folder("dsrun-x-", keep=True) as folder:
        assert list(folder.iterdir()) == []
    left = killed(temporary, "keep")
    with scratch_folder("dsrun-x-"):
        pass
    assert {*temporary.iterdir()} == {folder, left}


def test_folder_in_use_is_left_alone(temporary):
    other, theirs = holder(temporary)
    try:
        assert left_folders(temporary) == {}
        assert not remove_left(theirs)
        with scratch_folder("dsrun-x-"):
            assert (theirs / "object.o").exists()
    finally:
        other.communicate("")
    assert list(temporary.iterdir()) == []


def test_folder_of_killed_process_is_removed(temporary):
    theirs = killed(temporary)
    assert left_folders(temporary) == {theirs: None}
    with scratch_folder("dsrun-x-") as mine:
        assert list(temporary.iterdir()) == [mine]


def test_folder_of_other_origin_is_left_alone(temporary):
    """The caches of jobs, folders that a user calls so, and links."""
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / OWNER).touch()
    (temporary / f"dsrun-{os.getuid()}").mkdir()
    (temporary / "dsrun-link").symlink_to(elsewhere)
    assert left_folders(temporary) == {}


@pytest.mark.parametrize("host", ["this", "another"])
def test_only_its_machine_knows_a_folder_on_a_shared_disk(temporary, monkeypatch, host):
    theirs = killed(temporary)
    monkeypatch.setattr(scratch, "mount_in", lambda *_: MountPoint(point=temporary, kind="nfs4"))
    if host == "another":
        (theirs / OWNER).write_text("node7")
    assert left_folders(temporary) == {theirs: "node7" if host == "another" else None}
    with scratch_folder("dsrun-x-"):
        assert theirs.exists() == (host == "another")


def test_every_temporary_folder_of_the_package_is_one():
    """But for those that are below another one, or beside what they make."""
    pattern = re.compile(r"\b(TemporaryDirectory|mkdtemp)\(")
    found = {
        str(file.relative_to(PACKAGE)) for file in PACKAGE.rglob("*.py") if pattern.search(file.read_text("utf-8"))
    }
    assert found == {
        "demo/build_demo.py",  # beside what it makes, which replaces it
        "system/process/scratch.py",
        "train/worker.py",  # below the supervisor's
    }
