"""The store of finished wheels: whole or not there, two builders, copies for the user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from dsrun.errors import MissingError, UsageError
from dsrun.system.files import sha256_of
from dsrun.wheel.cache import LOG_NAME, RECORD_NAME, WheelCache, copy_out

KEY = "0123456789abcdef0123"
NAME = "deepspeed-0.19.8+cputorch2.13.x8664v3-cp311-cp311-linux_x86_64.whl"

HOLD = """
import sys
from pathlib import Path
from dsrun.wheel.cache import WheelCache
with WheelCache(Path(sys.argv[1])).exclusive(sys.argv[2], lambda: None):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path):
    return WheelCache(tmp_path / "wheels")


def fill(folder, content=b"a wheel", name=NAME):
    (folder / name).write_bytes(content)
    (folder / LOG_NAME).write_text("g++ …\n")
    record = {"version": 1, "wheel": name, "sha256": sha256_of(folder / name)}
    (folder / RECORD_NAME).write_text(json.dumps(record))


def put(store, key=KEY, content=b"a wheel", name=NAME):
    with store.exclusive(key, lambda: None), store.staging(key) as staged:
        fill(staged, content, name)
        return store.publish(key, staged)


def nothing_else(store):
    return sorted(path.name for path in store.root.iterdir() if path.suffix != ".lock")


def test_published_wheel_is_found_in_cache(store):
    assert store.find(KEY) is None
    entry = put(store)
    found = store.find(KEY)
    assert found == entry
    assert found == store.root / KEY / NAME
    assert found.read_bytes() == b"a wheel"
    assert found.with_name(LOG_NAME).read_text() == "g++ …\n"
    assert nothing_else(store) == [KEY]


def test_publishing_again_replaces_cache_entry(store):
    put(store)
    entry = put(store, content=b"another wheel")
    assert entry.read_bytes() == b"another wheel"
    assert store.find(KEY) == entry
    assert nothing_else(store) == [KEY]


def test_failed_build_leaves_nothing_in_cache(store):
    def fail():
        with store.exclusive(KEY, lambda: None), store.staging(KEY) as staged:
            fill(staged)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert store.find(KEY) is None
    assert nothing_else(store) == []


def test_leftovers_of_killed_build_are_removed(store):
    (store.root / f".{KEY}.4242").mkdir(parents=True)
    (store.root / f".{KEY}.4242" / "half").touch()
    put(store)
    assert nothing_else(store) == [KEY]


def damage_wheel(entry):
    entry.write_bytes(b"a whee1")


def cut_wheel(entry):
    os.truncate(entry, 3)


def remove_wheel(entry):
    entry.unlink()


def remove_record(entry):
    entry.with_name("WHEEL.json").unlink()


def cut_record(entry):
    os.truncate(entry.with_name("WHEEL.json"), 20)


def change_record(entry):
    entry.with_name("WHEEL.json").write_text('{"version": 1, "wheel": 3, "sha256": "x"}')


def nest_record(entry):
    entry.with_name("WHEEL.json").write_text("[" * 100_000)


def unreadable_wheel(entry):
    """As a disk that fails: the file is there, and reading it is an error."""
    entry.unlink()
    entry.symlink_to("/proc/self/mem")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (nest_record, "WHEEL.json is missing or unreadable"),
        (unreadable_wheel, f"{NAME} cannot be read: Input/output error"),
        (damage_wheel, f"{NAME} is not the file that was stored"),
        (cut_wheel, f"{NAME} is not the file that was stored"),
        (remove_wheel, f"{NAME} cannot be read: No such file or directory"),
        (remove_record, "WHEEL.json is missing or unreadable"),
        (cut_record, "WHEEL.json is missing or unreadable"),
        (change_record, "WHEEL.json is missing or unreadable"),
    ],
)
def test_damaged_cache_entry_is_ignored_with_reason(store, harm, said):
    harm(put(store))
    heard = []
    assert store.find(KEY, heard.append) is None
    assert heard == [said]


def test_cache_record_cannot_name_outside_file(store, tmp_path):
    (tmp_path / "other.whl").write_bytes(b"x")
    entry = put(store)
    record = {"version": 1, "wheel": "../../other.whl", "sha256": sha256_of(tmp_path / "other.whl")}
    entry.with_name("WHEEL.json").write_text(json.dumps(record))
    assert store.find(KEY) is None


def test_cache_lock_is_released_when_builder_is_killed(store):
    """Killed without a chance to clean up: its lock goes with it."""
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(store.root), KEY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert first.stdout.readline() == b"held\n"
        said = []

        def waiting():
            said.append("waiting")
            first.kill()

        with store.exclusive(KEY, waiting):
            assert said == ["waiting"]
    finally:
        first.kill()
        first.communicate()


def test_cache_lock_does_not_block_other_keys(store):
    with store.exclusive(KEY, lambda: None):
        put(store, key="f" * 20)
    assert store.find("f" * 20) is not None


def test_unwritable_cache(tmp_path):
    (tmp_path / "wheels").write_text("a file")
    with (
        pytest.raises(MissingError, match="cannot be written") as failure,
        WheelCache(tmp_path / "wheels").exclusive(KEY, lambda: None),
    ):
        pass
    assert "DSRUN_CACHE" in failure.value.fix


def test_copied_wheel_has_record_and_log(store, tmp_path):
    entry = put(store)
    wheel = copy_out(entry, tmp_path / "out" / "here")
    assert wheel == tmp_path / "out" / "here" / NAME
    assert sorted(path.name for path in wheel.parent.iterdir()) == [RECORD_NAME, LOG_NAME, NAME]
    assert copy_out(entry, wheel.parent) == wheel


def test_copied_wheel_is_not_the_cached_file(store, tmp_path):
    """Editing the copy leaves the cached wheel whole."""
    entry = put(store)
    copy_out(entry, tmp_path / "out").write_bytes(b"edited")
    assert store.find(KEY) is not None


def test_copy_keeps_other_file_of_same_name(store, tmp_path):
    entry = put(store)
    wheel = copy_out(entry, tmp_path / "out")
    wheel.write_bytes(b"precious")
    with pytest.raises(UsageError, match="is another file"):
        copy_out(entry, tmp_path / "out")
    assert wheel.read_bytes() == b"precious"
    copy_out(entry, tmp_path / "out", force=True)
    assert wheel.read_bytes() == b"a wheel"


def test_copy_replaces_symlink_and_not_its_target(store, tmp_path):
    """--force is about what is in the folder; the file elsewhere may be anybody's."""
    entry = put(store)
    precious, wheel = tmp_path / "precious", tmp_path / "out" / NAME
    precious.write_bytes(b"precious")
    wheel.parent.mkdir()
    wheel.symlink_to(precious)
    with pytest.raises(UsageError, match="is another file"):
        copy_out(entry, wheel.parent)
    assert copy_out(entry, wheel.parent, force=True) == wheel
    assert (wheel.is_symlink(), wheel.read_bytes(), precious.read_bytes()) == (False, b"a wheel", b"precious")


def test_copy_keeps_record_of_other_wheel(store, tmp_path):
    copy_out(put(store), tmp_path / "out")
    other = put(store, key="f" * 20, name=NAME.replace("v3", "v4"))
    with pytest.raises(UsageError, match="describes"):
        copy_out(other, tmp_path / "out")
    assert NAME in (tmp_path / "out" / RECORD_NAME).read_text()
    (tmp_path / "out" / NAME).unlink()
    copy_out(other, tmp_path / "out")
    assert other.name in (tmp_path / "out" / RECORD_NAME).read_text()


def test_copy_to_unwritable_folder(store, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot write"):
        copy_out(put(store), tmp_path / "file" / "out")


def test_moved_cache_still_works(store, tmp_path):
    put(store)
    shutil.move(store.root, tmp_path / "elsewhere")
    assert WheelCache(tmp_path / "elsewhere").find(KEY) is not None
