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
from dsrun.runs.folder import RunFolder, is_in_use
from dsrun.runs.lock import Holder, lives
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


def test_a_second_run_is_refused_with_the_first_ones_name(tmp_path):
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


def test_a_dead_run_blocks_nobody(tmp_path):
    with holder(tmp_path) as (process, _):
        process.kill()
        process.wait()
        assert (tmp_path / ".lock").read_text()
        assert is_in_use(tmp_path) is None
        RunFolder(tmp_path).acquire().release()


def test_an_orphaned_data_loader_worker_does_not_keep_the_lock(tmp_path):
    with holder(tmp_path, "fork") as (process, child):
        process.kill()
        process.wait()
        assert psutil.pid_exists(child)
        assert is_in_use(tmp_path) is None
        RunFolder(tmp_path).acquire().release()


def test_a_forked_child_does_not_free_the_lock(tmp_path):
    with holder(tmp_path, "fork") as (_, child):
        psutil.Process(child).kill()
        assert is_in_use(tmp_path)


def test_the_same_process_cannot_take_it_twice(tmp_path):
    run = RunFolder.create(tmp_path)
    with run.acquire():
        assert is_in_use(tmp_path)
        with pytest.raises(UsageError, match=f"process {os.getpid()}"):
            run.acquire()
    assert is_in_use(tmp_path) is None
    lock = run.acquire()
    lock.release()
    lock.release()


def test_nothing_there_is_not_in_use(tmp_path):
    assert is_in_use(tmp_path / "missing") is None
    assert is_in_use(tmp_path) is None


def test_the_lock_tells_pid_host_and_start(tmp_path):
    with RunFolder.create(tmp_path).acquire():
        said = json.loads((tmp_path / ".lock").read_text())
    assert (said["pid"], said["host"]) == (os.getpid(), host.hostname())
    assert said["began"] == pytest.approx(psutil.Process().create_time(), abs=1)


def test_where_there_are_no_locks_the_process_decides(tmp_path):
    other = psutil.Process(os.getppid())

    def claim(**changes):
        values = {
            "pid": other.pid,
            "host": host.hostname(),
            "since": "now",
            "began": other.create_time(),
        }
        return Holder(**{**values, **changes})

    assert lives(claim())
    assert lives(claim(began=None))
    assert not lives(claim(began=other.create_time() - 1000))  # the number was given to a later process
    assert not lives(claim(host="elsewhere"))
    assert not lives(claim(pid=0))
    assert not lives(claim(pid=2**22 + 1))
