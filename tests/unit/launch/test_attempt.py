"""The end of an attempt: a process that cannot be killed, and an exit code that is not known yet."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dsrun.launch.context import LocalWorkers, TrainingJob
from dsrun.launch.coordinator.messages import Coordinator
from dsrun.launch.signals import StopRequests
from dsrun.launch.supervisor import attempt, reaper
from dsrun.launch.supervisor.attempt import RunAttempt
from dsrun.launch.supervisor.ending import AttemptContext
from dsrun.launch.supervisor.failures import explain
from dsrun.launch.supervisor.watchdog import PhaseLimits
from dsrun.runs.heartbeat import RankHeartbeat, StopRequest
from dsrun.system import variables


class Agent:
    """One that has ended."""

    pid = None

    def poll(self):
        return 0


class Starter:
    def start(self, argv, env, *, ranks):
        return Agent()

    def kept_processes(self):
        return set()


def test_second_signal_ends_wait_for_unkillable_process(tmp_path, monkeypatch):
    """A second signal ends the wait for a process that cannot be killed."""
    stop_requests = StopRequests(tmp_path / "stop", lambda name: None)
    waits = []

    def end(mark, *, spare, within_s):
        waits.append(mark)
        assert len(waits) < 10, "for ever"
        if len(waits) > 1:
            stop_requests.handle(signal.SIGTERM)
        return False

    monkeypatch.setattr(reaper, "end", end)
    assert RunAttempt(surroundings(tmp_path, stop_requests), 0).run(Starter(), {}, 29500).ok
    assert stop_requests.force_quit == signal.SIGTERM
    assert len(waits) == 3


class FailingAgent(Agent):
    """One that fails at its second look."""

    def __init__(self):
        self.looks = 0

    def poll(self):
        self.looks += 1
        return 1 if self.looks > 1 else None


@pytest.mark.parametrize(("slow", "stalled"), [("wait", True), ("look", False)])
def test_stalled_time_is_only_what_wait_overran(slow, stalled, tmp_path, monkeypatch):
    """A supervisor that is stopped while it waits was stalled; one whose own look takes long was slow."""
    sleep = time.sleep
    if slow == "wait":
        monkeypatch.setattr(attempt.time, "sleep", lambda seconds: sleep(seconds + 0.5))
    else:
        monkeypatch.setattr(RunAttempt, "_poll", lambda self: sleep(0.5))
    starter = Starter()
    starter.start = lambda argv, env, *, ranks: FailingAgent()
    remains = (
        RunAttempt(surroundings(tmp_path, StopRequests(tmp_path / "stop", lambda name: None)), 0)
        .run(starter, {}, 29500)
        .failure_inputs
    )
    assert remains.detected_s >= 0.5
    assert (remains.stalled_s >= 0.4) == stalled
    assert remains.stalled_s <= remains.detected_s


class SlowAgent:
    """One of whose end the answer comes at the fifth look."""

    def __init__(self, pid, code):
        self.looks = 0
        self._pid = pid
        self._code = code

    @property
    def pid(self):
        return self._pid

    def poll(self):
        self.looks += 1
        return self._code if self.looks > 4 else None


class OneRank(Starter):
    """Starts `agent`, whose only rank has the process id `pid`; how it ended the agent does not say."""

    def __init__(self, agent, pid):
        self._agent = agent
        self._pid = pid

    def start(self, argv, env, *, ranks):
        news = {"rank": 0, "pid": self._pid, "status": None}
        Path(env[variables.RANKS]).write_text(json.dumps(news) + "\n")
        return self._agent


@pytest.fixture
def attempted(tmp_path, monkeypatch):
    """Make an attempt with these and no patience with agents; its end, and the failure it was."""
    monkeypatch.setattr(attempt, "_AGENT_REPORT_S", 0.0)

    def make(agent, pid):
        around = surroundings(tmp_path, StopRequests(tmp_path / "stop", lambda name: None))
        end = RunAttempt(around, 0).run(OneRank(agent, pid), {}, 29500)
        return end, explain(end.failure_inputs, lambda text, code: "")

    return make


def test_killed_agent_is_not_a_rank_failure(attempted):
    """A killed agent is not reported as the failure of a rank.

    However long its parent, which has forked it, takes to say so.
    """
    gone = subprocess.Popen(["true"])
    gone.wait()
    _, failure = attempted(SlowAgent(gone.pid, -signal.SIGKILL), gone.pid)
    assert (failure.cause, failure.rank, failure.exit_code) == ("agent_killed", None, -signal.SIGKILL)


def test_rank_success_despite_slow_agent_exit(attempted, monkeypatch):
    """A rank that exited with 0 has not failed because its agent is slow to say so.

    Half a second without the processor, at the end of a run, was a failure and a restart.
    """
    monkeypatch.setattr(attempt, "AGENT_TIMEOUT_S", 0.0)
    with subprocess.Popen(["true"]) as rank:
        until_zombie(rank.pid)
        end, _ = attempted(SlowAgent(os.getpid(), 0), rank.pid)
        assert end.ok


def test_rank_exit_code_known_without_agent(attempted):
    """How a rank failed is known even if its agent never reports it."""
    with subprocess.Popen(["sh", "-c", "exit 3"]) as rank:
        until_zombie(rank.pid)
        _, failure = attempted(SlowAgent(os.getpid(), None), rank.pid)
        assert (failure.rank, failure.exit_code) == (0, 3)


def until_zombie(pid):
    deadline = time.monotonic() + 60
    while reaper.state_and_parent(pid)[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def surroundings(folder, stop_requests):
    job = TrainingJob(topology=LocalWorkers(1, "cpu", 1), run=folder / "run", program=["x.py"], env={}, external=True)
    return AttemptContext(
        job=job,
        scratch=folder,
        run_id="mark",
        stop_requests=stop_requests,
        others=Coordinator(),
        log=folder / "log",
        poll=lambda: None,
        limits=PhaseLimits(None),
    )


@pytest.mark.parametrize(("rank", "signalled"), [(0, []), (1, [signal.SIGUSR1]), (None, [signal.SIGUSR1])])
def test_rank_that_requested_stop_is_not_signalled_back(rank, signalled, tmp_path, monkeypatch):
    sent = []
    monkeypatch.setattr(reaper, "kill", lambda pid, signum: sent.append((pid, signum)))
    stop_requests = StopRequests(tmp_path / "stop", lambda request: None)
    stop_requests.add(StopRequest("SIGTERM", rank=rank))
    around = surroundings(tmp_path, stop_requests)
    around = replace(around, job=replace(around.job, external=False))
    RunAttempt(around, 0).run(OneRank(SlowAgent(os.getpid(), 0), os.getpid()), {}, 29500)
    assert [signum for _, signum in sent] == signalled


@pytest.mark.parametrize(
    ("silent_s", "phase", "by_others", "collected"),
    [(9.0, "training", True, True), (2.0, "training", True, False), (9.0, "saving", True, False),
     (9.0, "training", False, False)],
)  # fmt: skip
def test_evidence_where_ranks_waited_for_another_node(silent_s, phase, by_others, collected, tmp_path):
    """The failure of another node may be a hang that these ranks waited for; else it costs no time here."""
    attempt = RunAttempt(surroundings(tmp_path, StopRequests(tmp_path / "stop", lambda request: None)), 0)
    attempt._pids = {0: os.getpid()}
    attempt._by_others = by_others
    beat = RankHeartbeat(
        rank=0, pid=os.getpid(), beats=9, time=time.monotonic() - silent_s, phase=phase, step=7, slowest_step=0.1,
        answers=False,
    )  # fmt: skip
    attempt._beats = {0: beat}
    assert attempt._wait_for_others() is collected
