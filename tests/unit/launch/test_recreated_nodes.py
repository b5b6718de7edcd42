"""Nodes that are created again, with their numbers, as long as they do not end with 0: pods of Kubernetes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from dsrun.errors import EXIT_RESUME, UsageError
from dsrun.launch.coordinator import messages
from dsrun.launch.coordinator.messages import NodeResult, RendezvousError
from dsrun.launch.coordinator.rendezvous import rendezvous
from dsrun.launch.signals import StartupSignals
from dsrun.launch.supervisor.policy import NODE_LOST
from tests.unit.launch.local_cluster import HANDSHAKE_TIMEOUT_S, KEY, restart, until


@pytest.mark.parametrize(("recreated", "code"), [(True, EXIT_RESUME), (False, 1)])
def test_loss_of_node_0_ends_recreated_nodes_to_resume(cluster, recreated, code):
    """Nothing of the run has failed; nodes that nobody creates again have lost it."""
    leader, one = cluster.open(2, recreated=recreated)
    leader.end()  # no good-bye
    until(one.check)
    decision = one.report_and_wait(NodeResult(node=1, ok=False), None)
    assert (decision.action, decision.exit_code, decision.cause) == ("stop", code, NODE_LOST)


def test_node_that_stays_away_ends_others_to_resume(cluster):
    """A new pod may wait for a machine for hours: the others end, and wait for it again when they are created."""
    leader, one = cluster.open(2, timeout_s=1.0, recreated=True)
    one.end()
    until(leader.check)
    decision = leader.report_and_wait(NodeResult(node=0, ok=False), lambda _: restart())
    assert (decision.action, decision.exit_code, decision.cause) == ("stop", EXIT_RESUME, NODE_LOST)
    assert "node 1 (machine-1) did not come back within 1 s" in decision.why


def test_recreated_node_waits_until_earlier_one_is_gone(cluster, monkeypatch):
    """The connection of the earlier one may outlive it by seconds; elsewhere two nodes of one number are a mistake."""
    leader, one = cluster.open(2)
    with pytest.raises(UsageError, match="machine-1 is node 1 already"):
        cluster.follower(1, 2)
    # As soon as the new one is refused.
    monkeypatch.setattr(messages.time, "sleep", lambda _: one.end())
    again = cluster.follower(1, 2, recreated=True)
    until(lambda: leader._peers[1].connection.sock.getpeername() == again._connection.sock.getsockname())


@pytest.mark.parametrize("recreated", [True, False])
def test_recreated_node_meets_new_node_0_after_old_one(cluster, recreated):
    """Of the earlier start node 0 may be the last to end: a new node that has met it goes on looking for the next."""
    old = cluster.leader(3)
    place = cluster.place(1, 3, recreated=recreated)
    options = {"run_info": {}, "secret": "word", "name": "machine-1", "timeout_s": HANDSHAKE_TIMEOUT_S}

    def meet():
        with rendezvous(place, StartupSignals(), **options) as coordinator:
            return coordinator.run_info

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as pool:
        patch.setattr(messages, "shared_key", lambda **_: KEY)
        met = pool.submit(meet)
        until(lambda: 1 in old._peers)
        old.close()
        if not recreated:
            with pytest.raises(RendezvousError, match="disconnected before all nodes had joined"):
                met.result()
            return
        new = cluster.leader(3, run_info={"output": "runs/new"})
        cluster.follower(2, 3)
        new.gather()
        assert met.result() == {"output": "runs/new"}
