"""One run per folder: real processes that hold the lock, die with it, or leave children behind."""

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager, suppress

import psutil
import pytest

from dsrun.errors import UsageError
from dsrun.runs.folder import RunFolder
from dsrun.runs.lock import LockHolder, is_in_use, lives
from dsrun.system import host

HOLD = """
import os, sys, time
from dsrun.runs.folder import RunFolder
lock = RunFolder.create(sys.argv[1]).acquire()
if sys.argv[2] == "fork":
    begun, begins = os.pipe()
    child = os.fork()
    if not child:
        os.write(begins, b".")
        time.sleep(600)
    os.read(begun, 1)
    print(child, flush=True)
else:
    print(0, flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(path, mode="plain"):
    """A process that holds `path`, and the pid of the child it forked."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    child = int(process.stdout.readline())
    try:
        yield process, child
    finally:
        process.kill()
        process.wait()
        if child:
            with suppress(psutil.NoSuchProcess):
                psutil.Process(child).kill()


def test_run_lock_refusal_names_holder(tmp_path):
    """A second run is refused, and the message names the first one."""
    with holder(tmp_path) as (process, _):
        expected = rf"output folder {re.escape(str(tmp_path))} is in use by process {process.pid} on host "
        with pytest.raises(UsageError, match=expected) as caught:
            RunFolder(tmp_path).acquire()
        assert re.search(rf"on host {re.escape(host.hostname())} since \d{{4}}-", caught.value.message)
        assert caught.value.fix == "choose another --output or stop it"
        with pytest.raises(UsageError, match="is in use"):
            RunFolder.create(tmp_path, force=True)
        found = is_in_use(tmp_path)
        assert found
        assert (found.pid, found.host) == (process.pid, host.hostname())


def test_run_lock_of_dead_process_is_free(tmp_path):
    """A dead run blocks no other."""
    with holder(tmp_path) as (process, _):
        process.kill()
        process.wait()
        assert (tmp_path / ".lock").read_text()
        assert is_in_use(tmp_path) is None
        RunFolder(tmp_path).acquire().release()


def test_run_lock_not_kept_by_orphaned_data_loader_worker(tmp_path):
    """An orphaned data loader worker does not keep the lock."""
    with holder(tmp_path, "fork") as (process, child):
        process.kill()
        process.wait()
        assert psutil.pid_exists(child)
        assert is_in_use(tmp_path) is None
        RunFolder(tmp_path).acquire().release()


def test_run_lock_not_freed_by_forked_child(tmp_path):
    """A forked child does not free the lock."""
    with holder(tmp_path, "fork") as (_, child):
        psutil.Process(child).kill()
        assert is_in_use(tmp_path)


def test_run_lock_cannot_be_taken_twice_by_one_process(tmp_path):
    """The same process cannot take the lock twice."""
    run = RunFolder.create(tmp_path)
    with run.acquire():
        assert is_in_use(tmp_path)
        with pytest.raises(UsageError, match=f"process {os.getpid()}"):
            run.acquire()
    assert is_in_use(tmp_path) is None
    lock = run.acquire()
    lock.release()
    lock.release()


def test_run_lock_is_asked_for_once_if_wanted(tmp_path, monkeypatch):
    """Whoever only shows a run does not wait for the lock of one that goes on."""
    pauses = []
    monkeypatch.setattr("dsrun.runs.lock.time.sleep", pauses.append)
    with RunFolder.create(tmp_path).acquire():
        assert is_in_use(tmp_path, tries=1)
        assert pauses == []
        assert is_in_use(tmp_path)
        assert pauses


def test_run_lock_of_missing_folder_is_free(tmp_path):
    """A missing or empty folder is not in use."""
    assert is_in_use(tmp_path / "missing") is None
    assert is_in_use(tmp_path) is None


def test_run_lock_file_has_pid_host_and_start(tmp_path):
    """The lock file tells the holder's pid, host and start."""
    with RunFolder.create(tmp_path).acquire():
        said = json.loads((tmp_path / ".lock").read_text())
    assert (said["pid"], said["host"]) == (os.getpid(), host.hostname())
    assert said["began"] == pytest.approx(psutil.Process().create_time(), abs=1)


def test_run_lock_holder_checked_by_process_without_flock(tmp_path):
    """Where files cannot be locked, the process named in the file decides."""
    other = psutil.Process(os.getppid())

    def claim(**changes):
        values = {
            "pid": other.pid,
            "host": host.hostname(),
            "since": "now",
            "began": other.create_time(),
        }
        return LockHolder(**{**values, **changes})

    assert lives(claim())
    assert lives(claim(began=None))
    assert not lives(claim(began=other.create_time() - 1000))  # the number was given to a later process
    assert not lives(claim(host="elsewhere"))
    assert not lives(claim(pid=0))
    assert not lives(claim(pid=2**22 + 1))
