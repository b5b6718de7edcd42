"""The orphan reaper: processes with the run ID end with the one that held the pipe, and no others do."""

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

from dsrun.launch.supervisor import reaper

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
    reaper.end(mark, within_s=60)


def start(mark: str | None, code: str = SLEEP) -> subprocess.Popen:
    env = {**os.environ, "DSRUN_RUN_ID": f"outer/{mark}" if mark else "outer"}
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


def test_reaper_finds_marked_processes_and_descendants(mark):
    """The run's processes are those that carry its mark, and their descendants."""
    stranger, child = start(None), start(mark, CHILD)
    assert child.stdout is not None
    grandchild = int(child.stdout.readline())
    try:
        wait_until(lambda: reaper.members(mark) == {child.pid, grandchild})
        assert reaper.members(mark, spare={child.pid}) == set()
    finally:
        stranger.kill()
        psutil.Process(grandchild).kill()


def test_reaper_kills_stopped_processes_and_spares_given(mark):
    """It ends them all, also the stopped ones, and spares those it is told to."""
    stopped, kept_processes = start(mark), start(mark)
    wait_until(lambda: reaper.members(mark) == {stopped.pid, kept_processes.pid})
    psutil.Process(stopped.pid).suspend()
    assert reaper.end(mark, spare={kept_processes.pid}, within_s=60)
    assert stopped.wait(60) == -9
    assert kept_processes.poll() is None


def test_reaper_process_waits_for_pipe_end_then_cleans_up(mark, tmp_path):
    """The process waits for its pipe to close, ignores signals, and tidies up."""
    scratch = tmp_path / "scratch"
    (scratch / "inner").mkdir(parents=True)
    stranger, child = start(None), start(mark)
    wait_until(lambda: reaper.members(mark) == {child.pid})
    read, write = os.pipe()
    argv = [sys.executable, "-I", "-S", reaper.__file__, str(read), mark, str(scratch)]
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


def test_process_state_of_exited_pid_is_empty():
    """A process that is gone has no state."""
    done = subprocess.run([sys.executable, "-c", ""], check=True)
    assert done.returncode == 0
    assert reaper.state_and_parent(2**22 - 1) == ("", 0)
    assert reaper.state_and_parent(os.getpid())[1] == os.getppid()


def test_reaper_kills_zombie_with_running_threads(mark):
    """A zombie whose threads go on has not ended, and is ended too.

    As a rank whose asynchronous I/O gives pinned buffers back: its main thread is gone, waitpid has no answer.
    """
    code = (
        "import ctypes, os, threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "ctypes.CDLL(None).syscall(60 if os.uname().machine == 'x86_64' else 93, 0)  # exit(2), of this thread alone\n"
    )
    process = start(mark, code)
    wait_until(lambda: reaper.state_and_parent(process.pid)[0] == "Z")
    assert reaper.threads(process.pid) > 1
    assert reaper.lives(process.pid)
    assert process.poll() is None
    assert reaper.members(mark) == {process.pid}
    assert reaper.end(mark, within_s=60)
    assert process.wait(60) == -9
    assert not reaper.lives(process.pid)


def test_reaper_waits_for_process_freeing_memory(mark, monkeypatch):
    """A process that is still giving memory back has not ended.

    Nothing in /proc tells any more that such a process is of the family.
    """
    monkeypatch.setattr(reaper, "_QUIET_ROUNDS", 1)
    monkeypatch.setattr(reaper, "_POLL_S", 0.001)
    size, small_pages = 1 << 29, 15  # MADV_NOHUGEPAGE: many pages take their time
    code = (
        f"import mmap, time; memory = mmap.mmap(-1, {size}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        f"memory.madvise({small_pages}); memory[::4096] = bytes({size // 4096}); print('full', flush=True)\n{SLEEP}"
    )
    process = start(mark, code)
    assert process.stdout is not None
    assert process.stdout.readline() == "full\n"
    assert reaper.end(mark, within_s=60)
    assert process.poll() == -9
