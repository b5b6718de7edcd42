"""No node ends its ranks after a hang before all nodes have found out where theirs are."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from dsrun.launch.coordinator import messages
from dsrun.launch.coordinator.messages import Coordinator, NodeResult
from dsrun.launch.signals import StopRequests
from dsrun.launch.supervisor import reaper
from dsrun.launch.supervisor.attempt import RunAttempt
from dsrun.launch.supervisor.evidence import evidence_folder
from tests.unit.launch.local_cluster import FAILED, NEVER, report_all, restart, stop, until
from tests.unit.launch.test_attempt import OneRank, SlowAgent, surroundings


@pytest.fixture
def patient(monkeypatch):
    monkeypatch.setattr(messages, "EVIDENCE_TIMEOUT_S", NEVER)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("first", [0, 1, 2])
def test_hang_is_held_until_all_nodes_have_evidence(first, cluster):
    nodes = cluster.open(3)
    others = [each for each in nodes if each.node != first]
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(nodes[first].share_evidence, bool)]
        for each in others:
            until(lambda node=each: node.check() and node.hang_elsewhere())
        waiting.append(pool.submit(others[0].share_evidence, bool))
        until(lambda: nodes[0]._with_evidence == {first, others[0].node})
        assert not any(each.done() for each in waiting)
        others[1].share_evidence(bool)
        for each in waiting:
            each.result()
    # The next attempt begins with nothing of it.
    report_all(nodes, [NodeResult(node=n, ok=n != first, failure=FAILED) for n in range(3)], lambda _: restart())
    assert not any(each.check() or each.hang_elsewhere() for each in nodes)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("before", [True, False])
def test_node_that_is_lost_or_done_is_not_awaited(before, cluster):
    leader, one, two, three = cluster.open(4)
    with ThreadPoolExecutor(3) as pool:
        pool.submit(two.report_and_wait, NodeResult(node=2, ok=True), None)
        until(lambda: 2 in leader._ends)
        if before:
            three.close()
            until(lambda: 3 in leader._ends)
        waiting = [pool.submit(each.share_evidence, bool) for each in (leader, one)]
        if not before:
            until(lambda: {0, 1} <= leader._with_evidence)
            three.close()
        for each in waiting:
            each.result()
        report_all((leader, one), [NodeResult(node=n, ok=False, failure=FAILED) for n in (0, 1)], lambda _: stop())


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("node", [0, 1])
def test_second_signal_ends_wait_for_evidence(node, cluster):
    cluster.open(2)[node].share_evidence(lambda: True)


@pytest.mark.parametrize("node", [0, 1])
def test_wait_for_evidence_is_limited(node, cluster, monkeypatch):
    """A supervisor that is stopped must not keep the others from a restart."""
    monkeypatch.setattr(messages, "EVIDENCE_TIMEOUT_S", 0.1)
    cluster.open(2)[node].share_evidence(bool)


class HangOfAnotherNode(Coordinator):
    """Notes which of `pids` were alive, and which evidence there was, when it was told that evidence is collected."""

    def __init__(self, pid, folder):
        super().__init__()
        self.pid = pid
        self.folder = folder
        self.seen = None

    def check(self):
        return True

    def hang_elsewhere(self):
        return True

    def share_evidence(self, give_up):
        assert not give_up()
        self.seen = reaper.lives(self.pid), [file.name for file in self.folder.iterdir()]


def test_hang_elsewhere_is_looked_into_before_ranks_end(tmp_path, monkeypatch):
    """Whatever its own ranks are doing: they are seen alive, and end afterwards."""
    around = surroundings(tmp_path, StopRequests(tmp_path / "stop", lambda request: None))
    monkeypatch.setattr(reaper, "end", lambda run_id, **_more: bool(rank.kill() or rank.wait()))
    with subprocess.Popen(["sleep", "1000"]) as rank:
        others = HangOfAnotherNode(rank.pid, evidence_folder(around.job.run, 0))
        end = RunAttempt(replace(around, others=others), 0).run(OneRank(SlowAgent(os.getpid(), 0), rank.pid), {}, 29500)
    assert others.seen == (True, ["rank-0.proc.txt"])
    assert end.by_others
