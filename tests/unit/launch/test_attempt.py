"""The end of an attempt: of which somebody cannot be ended, or of which nobody has said yet how it ended."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

from dsrun.launch import attempt, guard
from dsrun.launch.attempt import Attempt, Surroundings
from dsrun.launch.council import Alone
from dsrun.launch.failures import explain
from dsrun.launch.job import Job
from dsrun.launch.ranks import RANKS_VARIABLE
from dsrun.launch.topology import Topology
from dsrun.launch.wishes import Wishes


class Agent:
    """One that has ended."""

    def pid(self):
        return None

    def poll(self):
        return 0


class Starter:
    def start(self, argv, env, *, ranks):
        return Agent()

    def spared(self):
        return set()


def test_two_signals_end_the_wait_for_a_process_that_cannot_be_killed(tmp_path, monkeypatch):
    """As one that waits for a file server; no test can make one."""
    wishes = Wishes(tmp_path / "stop", lambda name: None)
    waits = []

    def end(mark, *, spare):
        waits.append(mark)
        assert len(waits) < 10, "for ever"
        if len(waits) > 1:
            wishes.heed(signal.SIGTERM)
        return False

    monkeypatch.setattr(guard, "end", end)
    assert Attempt(surroundings(tmp_path, wishes), 0).run(Starter(), {}, 29500).ok
    assert wishes.at_once == signal.SIGTERM
    assert len(waits) == 3


class KilledAgent:
    """One that was killed, and its only rank with it, of which the answer comes at the fifth look."""

    def __init__(self, pid):
        self.looks = 0
        self._pid = pid

    def pid(self):
        return self._pid

    def poll(self):
        self.looks += 1
        return -signal.SIGKILL if self.looks > 4 else None


def test_the_death_of_an_agent_is_no_death_of_its_ranks(tmp_path, monkeypatch):
    """However long its parent, which has forked it, takes to say so."""
    monkeypatch.setattr(attempt, "_UNREPORTED_S", 0.0)
    gone = subprocess.Popen(["true"])
    gone.wait()

    class Killed(Starter):
        def start(self, argv, env, *, ranks):
            news = {"rank": 0, "pid": gone.pid, "status": None}
            Path(env[RANKS_VARIABLE]).write_text(json.dumps(news) + "\n")
            return KilledAgent(gone.pid)

    around = surroundings(tmp_path, Wishes(tmp_path / "stop", lambda name: None))
    end = Attempt(around, 0).run(Killed(), {}, 29500)
    failure = explain(end.remains, lambda text, code: "")
    assert (failure.cause, failure.rank, failure.exit_code) == ("agent_killed", None, -signal.SIGKILL)


def surroundings(folder, wishes):
    job = Job(topology=Topology(1, "cpu", 1), run=folder / "run", program=["x.py"], env={}, foreign=True)
    return Surroundings(
        job=job,
        scratch=folder,
        mark="mark",
        wishes=wishes,
        others=Alone(),
        log=folder / "log",
        look=lambda: None,
    )
