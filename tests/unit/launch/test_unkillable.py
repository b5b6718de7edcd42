"""A process in uninterruptible sleep: the wait for it ends, and says what it waits for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid

import pytest

from dsrun.launch.supervisor import reaper
from dsrun.launch.supervisor.ending import describe, end_processes
from tests.frozen import frozen

READS = "import os; print(flush=True); os.read(0, 1)"


@pytest.fixture
def reading(tmp_path):
    """A process of a run that reads from a pipe; its process id and run ID."""
    run_id = uuid.uuid4().hex
    env = {**os.environ, "DSRUN_RUN_ID": run_id}
    argv = [sys.executable, "-c", READS]
    with subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process.pid, run_id
        process.kill()


def test_wait_for_unkillable_process_ends(reading):
    """It is told once what is waited for, and given up after the limit."""
    pid, run_id = reading
    told = []
    with frozen(pid):
        more = {"spare": set(), "ranks": {3: pid}, "waiting": lambda *words: told.append(words)}
        line = end_processes(run_id, **more, give_up=lambda: False, limit_s=1.0)
    assert line.startswith(f"rank 3 (process {pid}) ")
    assert "in read on pipe:" in line
    assert [words[0] for words in told] == [line]
    assert end_processes(run_id, **more, give_up=lambda: False, limit_s=60.0) is None


def test_description_of_process_that_is_gone():
    """It may end while it is looked at."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert str(gone.pid) in describe([gone.pid], {})
    assert describe([], {})


def test_frozen_process_survives_sigkill(reading):
    """What these tests stand on."""
    pid, _ = reading
    with frozen(pid):
        os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
        assert reaper.state_and_parent(pid)[0] == "D"
