"""What is written down of ranks before they are ended, with real processes in real trouble."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from dsrun.launch.supervisor.evidence import collect
from dsrun.launch.supervisor.reaper import state_and_parent
from dsrun.runs.heartbeat import Heart, read_beats

RANK = """
import faulthandler, signal, sys, time
faulthandler.register(signal.SIGUSR2, all_threads=True)
def wait_for_the_others():
    print("ready", flush=True)
    time.sleep(300)
wait_for_the_others()
"""
# One that answers as faulthandler does, out of a handler of C, and is held up after the first line.
SLOW = """
import ctypes, os, signal, time
@ctypes.CFUNCTYPE(None, ctypes.c_int)
def answer(signum):
    os.write(2, b"Current thread (most recent call first):\\n")
    time.sleep(0.5)
    os.write(2, b"  in the_second_line\\n")
ctypes.CDLL(None).signal(signal.SIGUSR2, answer)
print("ready", flush=True)
time.sleep(300)
"""


@pytest.fixture
def ranks(tmp_path):
    """Start a rank whose stderr is a log; returns its process id."""
    running = []

    def start(rank: int, code: str = RANK) -> int:
        log = (tmp_path / f"rank-{rank}.log").open("w")
        log.write("earlier words\n")
        log.flush()
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=log)
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        # Asleep: py-spy may not understand the stack of one that is just calling and returning.
        while state_and_parent(process.pid)[0] != "S":
            time.sleep(0.01)
        return process.pid

    yield start
    for each in running:
        each.kill()
        each.wait()


def beats_of(folder, pids, answers):
    for rank, pid in pids.items():
        heart = Heart(folder, rank, answers=answers)
        heart._beat = type(heart._beat)(**{**vars(heart._beat), "pid": pid})
        heart.step(7)
    return read_beats(folder)


@pytest.fixture
def pids(ranks):
    """Rank 0 waits, rank 1 is stopped."""
    found = {0: ranks(0), 1: ranks(1)}
    os.kill(found[1], signal.SIGSTOP)
    while state_and_parent(found[1])[0] != "T":
        time.sleep(0.01)
    return found


@pytest.fixture
def blind(monkeypatch, tmp_path):
    """py-spy is not allowed to look."""
    spy = tmp_path / "py-spy"
    spy.write_text("#!/bin/sh\necho 'Permission Denied: try again with sudo' >&2; exit 1\n")
    spy.chmod(0o755)
    monkeypatch.setattr("dsrun.launch.supervisor.evidence.shutil.which", lambda name, path: str(spy))


def test_stack_dump_of_stopped_rank_by_py_spy(pids, tmp_path, monkeypatch):
    """py-spy dumps the stack of a stopped rank too."""
    monkeypatch.setattr("dsrun.launch.supervisor.evidence.PY_SPY_S", 60)
    collect(tmp_path / "evidence", pids, {}, {}, began=time.time())
    for rank in pids:
        assert "wait_for_the_others" in (tmp_path / "evidence" / f"rank-{rank}.stacks.txt").read_text()
    assert "T (stopped)" in (tmp_path / "evidence" / "rank-1.proc.txt").read_text()


@pytest.mark.usefixtures("blind")
def test_stack_dumps_of_responsive_ranks_and_state_of_all(pids, tmp_path, monkeypatch):
    """Ranks that answer dump their stacks; the process state of all is kept."""
    monkeypatch.setattr("dsrun.launch.supervisor.evidence.STACKS_S", 5)
    collect(tmp_path / "evidence", pids, beats_of(tmp_path / "beats", pids, True), {}, began=time.time())
    stacks = (tmp_path / "evidence" / "rank-0.stacks.txt").read_text()
    assert "in wait_for_the_others" in stacks
    assert "earlier words" not in stacks
    assert not (tmp_path / "evidence" / "rank-1.stacks.txt").exists()
    state = (tmp_path / "evidence" / "rank-1.proc.txt").read_text()
    assert "T (stopped)" in state
    assert "step=7" in state


@pytest.mark.usefixtures("blind")
def test_stack_dump_awaited_until_complete(ranks, tmp_path, monkeypatch):
    """A stack dump is waited for until it is complete."""
    monkeypatch.setattr("dsrun.launch.supervisor.evidence.STACKS_S", 5)
    pids = {0: ranks(0, SLOW)}
    collect(tmp_path / "evidence", pids, beats_of(tmp_path / "beats", pids, True), {}, began=time.time())
    assert "in the_second_line" in (tmp_path / "evidence" / "rank-0.stacks.txt").read_text()


@pytest.mark.usefixtures("blind")
def test_no_stack_dump_signal_without_faulthandler(ranks, tmp_path):
    """A rank that the signal would kill is not asked for its stack."""
    pids = {0: ranks(0)}
    collect(tmp_path / "evidence", pids, beats_of(tmp_path / "beats", pids, False), {}, began=time.time())
    assert [each.name for each in (tmp_path / "evidence").iterdir()] == ["rank-0.proc.txt"]


def test_flight_recorder_dumps_of_this_attempt_collected(tmp_path):
    """Dumps of the flight recorder are kept, those of earlier runs are not."""
    prefix = tmp_path / "dump-"
    old, new = tmp_path / "dump-0", tmp_path / "dump-1"
    old.write_text("old")
    os.utime(old, (1, 1))
    new.write_text("new")
    env = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(prefix)}
    collect(tmp_path / "evidence", {}, {}, env, began=time.time() - 60)
    assert [each.name for each in (tmp_path / "evidence").iterdir()] == ["dump-1"]


def test_unwritable_evidence_folder_is_no_error(tmp_path):
    """An evidence folder that cannot be written is no reason to fail."""
    (tmp_path / "file").touch()
    collect(tmp_path / "file" / "evidence", {0: os.getpid()}, {}, {}, began=0.0)
