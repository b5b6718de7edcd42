"""The guard: whoever carries the family's mark ends with the one who held the pipe, and nobody else does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from dsrun.launch import guard

SLEEP = "import time; time.sleep(300)"
# A grandchild in a session of its own, without the mark, whose parent lives.
CHILD = f"""
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", "{SLEEP}"], start_new_session=True, env={{}}).pid, flush=True)
time.sleep(300)
"""


@pytest.fixture
def mark():
    """A mark of its own; nobody who carries it outlives the test."""
    mark = uuid.uuid4().hex
    yield mark
    guard.end(mark, within_s=60)


def start(mark: str | None, code: str = SLEEP) -> subprocess.Popen:
    env = {**os.environ, "DSRUN_FAMILY": f"outer/{mark}" if mark else "outer"}
    return subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)


def ignored(pid: int) -> int:
    """The mask of the signals that a process ignores."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("SigIgn:")[2].split()[0], 16)


def wait_until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_members_are_those_with_the_mark_and_their_descendants(mark):
    stranger, child = start(None), start(mark, CHILD)
    assert child.stdout is not None
    grandchild = int(child.stdout.readline())
    try:
        wait_until(lambda: guard.members(mark) == {child.pid, grandchild})
        assert guard.members(mark, spare={child.pid}) == set()
    finally:
        stranger.kill()
        psutil.Process(grandchild).kill()


def test_it_ends_them_all_also_the_stopped_and_spares_whom_it_is_told_to(mark):
    stopped, spared = start(mark), start(mark)
    wait_until(lambda: guard.members(mark) == {stopped.pid, spared.pid})
    psutil.Process(stopped.pid).suspend()
    assert guard.end(mark, spare={spared.pid}, within_s=60)
    assert stopped.wait(60) == -9
    assert spared.poll() is None


def test_the_process_waits_for_the_pipe_ignores_signals_and_tidies_up(mark, tmp_path):
    scratch = tmp_path / "scratch"
    (scratch / "inner").mkdir(parents=True)
    stranger, child = start(None), start(mark)
    wait_until(lambda: guard.members(mark) == {child.pid})
    read, write = os.pipe()
    argv = [sys.executable, "-I", "-S", guard.__file__, str(read), mark, str(scratch)]
    with subprocess.Popen(argv, pass_fds=(read,)) as process:
        os.close(read)
        # SIGUSR2 is the last that it ignores.
        wait_until(lambda: ignored(process.pid) & 1 << (signal.SIGUSR2 - 1))
        process.terminate()
        time.sleep(0.2)
        assert process.poll() is None
        assert child.poll() is None
        os.close(write)
        assert process.wait(60) == 0
    assert child.wait(60) == -9
    assert stranger.poll() is None
    assert not scratch.exists()
    stranger.kill()


def test_a_process_that_is_gone_has_no_state():
    done = subprocess.run([sys.executable, "-c", ""], check=True)
    assert done.returncode == 0
    assert guard.state_and_parent(2**22 - 1) == ("", 0)
    assert guard.state_and_parent(os.getpid())[1] == os.getppid()


def test_a_zombie_whose_threads_go_on_has_not_ended_and_is_ended_too(mark):
    """As a rank whose asynchronous I/O gives pinned buffers back: its main thread is gone, waitpid has no answer."""
    code = (
        "import ctypes, os, threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "ctypes.CDLL(None).syscall(60 if os.uname().machine == 'x86_64' else 93, 0)  # exit(2), of this thread alone\n"
    )
    process = start(mark, code)
    wait_until(lambda: guard.state_and_parent(process.pid)[0] == "Z")
    assert guard.threads(process.pid) > 1
    assert guard.lives(process.pid)
    assert process.poll() is None
    assert guard.members(mark) == {process.pid}
    assert guard.end(mark, within_s=60)
    assert process.wait(60) == -9
    assert not guard.lives(process.pid)


def test_who_is_still_giving_memory_back_has_not_ended(mark, monkeypatch):
    """Nothing in /proc tells any more that such a process is of the family."""
    monkeypatch.setattr(guard, "_QUIET_ROUNDS", 1)
    monkeypatch.setattr(guard, "_LOOK_S", 0.001)
    size, small_pages = 1 << 29, 15  # MADV_NOHUGEPAGE: many pages take their time
    code = (
        f"import mmap, time; memory = mmap.mmap(-1, {size}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        f"memory.madvise({small_pages}); memory[::4096] = bytes({size // 4096}); print('full', flush=True)\n{SLEEP}"
    )
    process = start(mark, code)
    assert process.stdout is not None
    assert process.stdout.readline() == "full\n"
    assert guard.end(mark, within_s=60)
    assert process.poll() == -9
