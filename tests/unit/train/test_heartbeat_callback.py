"""Heartbeats, and stacks that a supervisor can request."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from types import SimpleNamespace

from dsrun.events import PROGRESS_S
from dsrun.runs.heartbeat import HeartbeatWriter, read_beats
from dsrun.train.base.rank_context import RankContext, handler_from_env, is_supervised
from dsrun.train.loop.preemption import HeartbeatCallback
from dsrun.train.loop.recording import EventCallback
from tests.forkserver.client import HEAVY

STUCK = """
import sys, time, pathlib
from dsrun.train.base.rank_context import show_stacks_in
show_stacks_in(None)
show_stacks_in(pathlib.Path(sys.argv[1]))

def stuck_in_a_collective():
    print("ready", flush=True)
    time.sleep(600)

stuck_in_a_collective()
"""


def test_stuck_rank_dumps_stacks_on_signal(tmp_path):
    log = tmp_path / "rank-0.log"
    with HEAVY.popen([sys.executable, "-c", STUCK, log], stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGUSR2)
        deadline = time.monotonic() + 60
        while "stuck_in_a_collective" not in log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert process.poll() is None
        process.kill()


def test_group_timeout_in_heartbeat(tmp_path):
    """By which the supervisor keeps its limits below it; it stays with later beats."""
    heart = HeartbeatWriter(tmp_path, 1)
    assert read_beats(tmp_path)[1].group_timeout_s == 0
    heart.join(30.0)
    heart.step(1)
    assert read_beats(tmp_path)[1].group_timeout_s == 30.0


def test_steps_update_heartbeat_and_progress(tmp_path):
    context = RankContext(HeartbeatWriter(tmp_path, 1, answers=True), handler_from_env({}))
    beats = HeartbeatCallback(context)
    beats.on_train_begin(None, SimpleNamespace(global_step=40), None)
    assert context.progress.step == 40
    beats.on_step_end(None, SimpleNamespace(global_step=41), None)
    beat = read_beats(tmp_path)[1]
    assert (beat.phase, beat.step, beat.answers) == ("training", 41, True)
    assert context.progress.step == 41


def test_progress_event_once_a_minute():
    """The progress of a long training is an event once a minute."""
    written = []
    now = [0.0]
    records = SimpleNamespace(event=lambda kind, **details: written.append((kind, details["step"])))
    ledger = EventCallback(records, clock=lambda: now[0])
    ledger.on_train_begin(None, SimpleNamespace(global_step=7, max_steps=90), None)
    for step in range(8, 21):
        now[0] += PROGRESS_S / 4
        ledger.on_step_end(None, SimpleNamespace(global_step=step), None)
    assert written == [("training", 7), ("progress", 11), ("progress", 15), ("progress", 19)]


def test_supervisor_known_by_heartbeat_folder():
    assert is_supervised({"DSRUN_HEARTBEAT": "/run/x"})
    assert not is_supervised({})
