"""The end of an attempt of which somebody cannot be ended."""

from __future__ import annotations

import signal

from dsrun.launch import guard
from dsrun.launch.attempt import Attempt, Surroundings
from dsrun.launch.council import Alone
from dsrun.launch.job import Job
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
    job = Job(topology=Topology(1, "cpu", 1), run=tmp_path / "run", program=["x.py"], env={}, foreign=True)
    around = Surroundings(
        job=job,
        scratch=tmp_path,
        mark="mark",
        wishes=wishes,
        others=Alone(),
        log=tmp_path / "log",
        look=lambda: None,
    )
    assert Attempt(around, 0).run(Starter(), {}, 29500).ok
    assert wishes.at_once == signal.SIGTERM
    assert len(waits) == 3
