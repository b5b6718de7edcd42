"""What a signal does to a process with the handler, before training and in it; each case is a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from dsrun.errors import UsageError
from dsrun.train.base.rank_context import handler_from_env
from tests.forkserver.client import HEAVY

HEAD = """
import os, signal, sys, time
from dsrun.train.base.rank_context import handler_from_env
stopping = handler_from_env(os.environ)
stopping.install()
"""


# A child of this one comes late to what it has to do first.
SLOW_CHILD = """
import os, time
os.register_at_fork(after_in_child=lambda: time.sleep(1))
"""


@pytest.fixture
def start(tmp_path):
    """Starts a Python process with the listening head and the given body; it says `ready` when it is."""
    processes = []

    def begin(body, *, head=HEAD, **env):
        variables = {
            "DSRUN_SAVE_ON": "USR1,TERM",
            "DSRUN_STOP_FILE": str(tmp_path / "stop"),
            "DSRUN_FAILURES": str(tmp_path),
        }
        process = HEAVY.popen(
            [sys.executable, "-c", head + textwrap.dedent(body)],
            env={**os.environ, **variables, **env},
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield begin
    for process in processes:
        process.kill()
        process.wait()


def test_preemption_before_training_exits_at_once(start, tmp_path):
    process = start("print('ready', flush=True); time.sleep(600)")
    process.send_signal(signal.SIGUSR1)
    assert process.wait(timeout=60) == 0
    assert (tmp_path / "stop").exists()


def test_preemption_before_training_exits_native_code(start, tmp_path):
    """Code that runs no handler: as a rank does that waits in C++ code for another one that never comes."""
    body = """
        import torch.distributed as dist
        print('ready', flush=True)
        dist.TCPStore('127.0.0.1', 0, world_size=2, is_master=True, wait_for_workers=True)
    """
    process = start(body)
    # Listening, so inside of the C++ code.
    while not any(each.status == psutil.CONN_LISTEN for each in psutil.Process(process.pid).net_connections("tcp")):
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    assert json.loads((tmp_path / "interrupted.json").read_text()) == {"step": None, "path": None}


def test_preemption_signal_in_training_is_only_noted(start):
    body = """
        stopping.begin()
        print('ready', flush=True)
        while not stopping.is_requested:
            time.sleep(0.01)
        time.sleep(3)
        sys.exit(7)
    """
    process = start(body)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(timeout=60) == 7


@pytest.mark.parametrize(
    ("after", "supervised", "left"), [("", True, True), ("", False, False), ("stopping.conclude()", True, False)]
)
def test_preemption_leaves_what_a_checkpoint_holds(start, tmp_path, after, supervised, left):
    """After training, in whatever work; unless the run is as good as done, or nobody tells the other ranks."""
    body = f"""
        import dsrun.train.base.rank_context as module
        module.KEPT_PATIENCE_SECONDS = 0.5
        stopping.begin()
        stopping.keep(4, "checkpoint-4")
        {after}
        print('ready', flush=True)
        while not stopping.is_requested:
            time.sleep(0.01)
        time.sleep(3)
        sys.exit(7)
    """
    process = start(body, **({"DSRUN_HEARTBEAT": str(tmp_path / "beats")} if supervised else {}))
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == (0 if left else 7)
    told = tmp_path / "interrupted.json"
    assert (json.loads(told.read_text()) if told.exists() else None) == (
        {"step": 4, "path": "checkpoint-4"} if left else None
    )


# Says when the first SIGTERM has been heard: two that wait at once are one to the kernel.
WORKS_ON = """
stopping.begin()
print('ready', flush=True)
while {first} is None:
    time.sleep(0.01)
print('heard', flush=True)
time.sleep({seconds})
sys.exit(7)
"""


def hears(process) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "heard\n"


def test_second_sigterm_exits_at_once(start):
    process = start(WORKS_ON.format(first="stopping._first_term", seconds=600))
    hears(process)
    time.sleep(1.3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 128 + signal.SIGTERM


def test_simultaneous_preemption_signals_count_once(start):
    # However long this test is held up, it is one moment.
    moment = "import dsrun.train.base.rank_context as module; module.SAME_REQUEST_SECONDS = 600\n"
    process = start(moment + WORKS_ON.format(first="stopping._first_term", seconds=3))
    hears(process)
    for each in (signal.SIGUSR1, signal.SIGTERM):
        process.send_signal(each)
    assert process.wait(timeout=60) == 7


def test_second_sigterm_left_to_supervisor(start, tmp_path):
    """Under a supervisor, ending at once is up to the supervisor."""
    process = start(WORKS_ON.format(first="stopping.request", seconds=5), DSRUN_HEARTBEAT=str(tmp_path / "beats"))
    hears(process)
    time.sleep(1.3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 7


@pytest.mark.parametrize("late", [False, True])
def test_sigterm_to_forked_child_is_not_for_parent(start, tmp_path, late):
    """`datasets` ends the processes of its pools by SIGTERM, also one that the kernel has not let run yet."""
    body = f"""
        begun, begins = os.pipe()
        child = os.fork()
        if not child:
            os.write(begins, b'.')
            time.sleep(600)
        print('ready', flush=True)
        if not {late}:
            os.read(begun, 1)
        os.kill(child, signal.SIGTERM)
        status = os.waitpid(child, 0)[1]
        time.sleep(2.5)
        sys.exit(os.WTERMSIG(status) if not stopping.is_requested else 99)
    """
    process = start(body, head=(SLOW_CHILD if late else "") + HEAD)
    assert process.wait(timeout=60) == signal.SIGTERM
    assert not (tmp_path / "stop").exists()


def test_forked_child_has_no_preemption_handlers(start):
    """A signal ends it whatever it waits for; the parent goes on listening."""
    body = """
        child = os.fork()
        handlers = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGUSR1)]
        if not child:
            os._exit(0 if handlers == [signal.SIG_DFL] * 2 else 1)
        assert signal.SIG_DFL not in handlers
        print('ready', flush=True)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert start(body).wait(timeout=60) == 0


def test_preemption_off_without_signal():
    """Where no signal is named, none asks to stop."""
    assert not handler_from_env({}).is_on


def test_unknown_preemption_signal_rejected():
    with pytest.raises(UsageError, match="SIGNONSENSE"):
        handler_from_env({"DSRUN_SAVE_ON": "USR1,NONSENSE"})
