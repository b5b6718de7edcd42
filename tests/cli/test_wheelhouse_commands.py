"""`dsrun wheel list`, `gc` and `index` as a user calls them, on small wheels and a store made here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsrun.system.files import sha256_of
from dsrun.wheel.cache import LOG_NAME, RECORD_NAME
from tests.tiny_wheels import built_note, make_wheel

NOTE = "deepspeed/git_version_info_installed.py"


@pytest.fixture
def wheels(here: Path) -> Path:
    """A folder with a wheel for torch 2.13 on CPUs, one for CUDA 13.0, and another package's."""
    folder = here / "wheels"
    (folder / "more").mkdir(parents=True)
    make_wheel(folder, {NOTE: built_note(["cpu_adam"])}, version="0.19.8+cpu")
    make_wheel(folder, {NOTE: built_note(["fused_adam"], "cuda", "2.13", "13.0")}, version="0.19.8+cu")
    make_wheel(folder / "more", {"other/__init__.py": ""}, name="other", version="1.0", tag="py3-none-any")
    return folder


def stored(cache: Path, key: str, *, days: float) -> Path:
    """An entry of the store that was used so many days ago."""
    entry = cache / "wheels" / key
    entry.mkdir(parents=True)
    wheel = make_wheel(entry, {NOTE: built_note(["cpu_adam"])})
    (entry / LOG_NAME).touch()
    record = {"version": 1, "wheel": wheel.name, "sha256": sha256_of(wheel), "key": key}
    (entry / RECORD_NAME).write_text(json.dumps(record))
    then = time.time() - days * 86400
    os.utime(entry, (then, then))
    return entry


def test_wheel_list_of_folder(dsrun, wheels):
    done = dsrun("wheel", "list", "wheels")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.count("0.19.8+c") > 0 for line in done.stdout.splitlines()[1:3]] == [True, True]
    listed = json.loads(dsrun("wheel", "list", "wheels", "--format", "json").stdout)["wheels"]
    assert [each["version"] for each in listed] == ["0.19.8+cpu", "0.19.8+cu", "1.0"]


def test_wheel_list_of_what_is_no_folder(dsrun):
    done = dsrun("wheel", "list", "gone")
    assert (done.returncode, done.stdout) == (2, "")
    assert "gone is not a folder" in done.stderr


def test_wheel_index_separates_torch_and_accelerator(dsrun, wheels):
    done = dsrun("wheel", "index", "wheels")
    assert (done.returncode, done.stderr) == (0, "")
    page = (wheels / "torch2.13-cu130/deepspeed/index.html").read_text()
    assert "0.19.8%2Bcu" in page
    assert "0.19.8%2Bcpu" not in page
    assert "0.19.8%2Bcpu" in (wheels / "torch2.13-cpu/deepspeed/index.html").read_text()
    assert "more/other-1.0" in (wheels / "simple/other/index.html").read_text()


def test_wheel_index_forgets_removed_wheel(dsrun, wheels):
    dsrun("wheel", "index", "wheels")
    next(wheels.glob("*+cu-*")).unlink()
    dsrun("wheel", "index", "wheels")
    assert "href" not in (wheels / "torch2.13-cu130/deepspeed/index.html").read_text()


def test_wheel_gc_removes_what_was_not_used(dsrun, environ, tmp_path):
    environ["DSRUN_CACHE"] = str(tmp_path / "cache")
    old = stored(tmp_path / "cache", "a" * 20, days=100)
    young = stored(tmp_path / "cache", "b" * 20, days=80)
    dry = dsrun("wheel", "gc", "--dry-run")
    assert dry.returncode == 0
    assert str(old) in dry.stdout
    assert str(young) not in dry.stdout
    assert old.exists()
    assert dsrun("wheel", "gc").returncode == 0
    assert not old.exists()
    assert young.exists()
    dsrun("wheel", "gc", "--older-than", "0")
    assert not young.exists()


def test_wheel_gc_removes_what_a_killed_build_left(dsrun, environ, tmp_path):
    """Nothing of a build that goes on, and nothing that was kept; a folder of another machine is named."""
    environ |= {"DSRUN_CACHE": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    program = "import os; from dsrun.system.process.scratch import *\n"
    program += "with scratch_folder('dsrun-wheel-1-') as folder:\n"
    program += "    (folder / 'object.o').write_bytes(bytes(1 << 20)); print(folder, flush=True); input()"
    builds = [
        subprocess.Popen(
            [sys.executable, "-c", program], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    killed, live = (Path(each.stdout.readline().strip()) for each in builds)
    (tmp_path / "dsrun-wheel-kept").mkdir()
    builds[0].kill()
    builds[0].communicate()
    try:
        for words, names in (["--dry-run"], [killed]), ([], [killed]), ([], []):
            answer = json.loads(dsrun("wheel", "gc", "--format", "json", *words).stdout)
            assert [each["path"] for each in answer["removed"]] == [str(name) for name in names]
            assert answer["unknown"] == []
        assert not killed.exists()
        assert (live / "object.o").exists()
        assert (tmp_path / "dsrun-wheel-kept").exists()
    finally:
        builds[1].communicate("\n")
