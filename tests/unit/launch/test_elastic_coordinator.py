"""--elastic: nodes that are enough go on at once, and those that come back are taken in."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dsrun.errors import EXIT_RESUME, UsageError
from dsrun.launch.coordinator import messages
from dsrun.launch.coordinator.client import OverWithoutThisNode
from dsrun.launch.coordinator.messages import NodeResult, StoppedBeforeStart, unless_stopped
from dsrun.launch.coordinator.server import CoordinatorServer
from dsrun.launch.signals import StopRequests
from dsrun.launch.supervisor.policy import NODE_LOST
from dsrun.runs.heartbeat import REGROUP, StopRequest
from tests.unit.launch.local_cluster import restart, stop, until


def goes_on_without(leader, lost, left):
    """The end of an attempt by the loss of a node; the members of the next one as each node knows them."""
    lost.end()  # no good-bye
    until(leader.check)
    with ThreadPoolExecutor() as pool:
        told = [pool.submit(each.report_and_wait, NodeResult(node=each.node, ok=False), None) for each in left]
        decision = leader.report_and_wait(NodeResult(node=0, ok=False), lambda _: restart())
        assert {each.result().nodes for each in told} == {decision.nodes}
    return decision


@pytest.fixture
def shrunk(cluster):
    """Three nodes of which two are enough, after the loss of node 1."""
    leader, one, two = cluster.open(3, least=2)
    assert leader.members == one.members == (0, 1, 2)
    assert goes_on_without(leader, one, [two]).nodes == (0, 2)
    return leader, two


def test_enough_nodes_do_not_wait_for_the_lost_one(shrunk):
    leader, two = shrunk
    assert leader.members == two.members == (0, 2)
    with ThreadPoolExecutor() as pool:
        ends = pool.submit(leader.report_and_wait, NodeResult(node=0, ok=True), lambda ended: stop(len(ended)))
        assert two.report_and_wait(NodeResult(node=2, ok=True), None).exit_code == 2
        assert ends.result().exit_code == 2


def test_too_few_nodes_end_the_run(cluster):
    leader, one, two = cluster.open(3, least=2, returns=False)
    for each in (one, two):
        each.end()
    until(lambda: len(leader._ends) == 2)
    decision = leader.report_and_wait(NodeResult(node=0, ok=False), lambda _: restart())
    assert (decision.action, decision.cause) == ("stop", NODE_LOST)


def test_start_does_not_wait_long_for_nodes_it_can_do_without(cluster, monkeypatch):
    monkeypatch.setattr(messages, "ELASTIC_START_S", 0.0)
    leader = cluster.leader(3, least=2)
    two = cluster.follower(2, 3)
    until(lambda: 2 in leader._peers)
    leader.gather()
    two.gather()
    assert leader.members == two.members == (0, 2)


def test_node_that_comes_back_is_taken_in_after_a_while(cluster, shrunk, monkeypatch):
    leader, two = shrunk
    assert not leader.must_regroup()
    one = cluster.follower(1, 3)
    until(lambda: 1 in leader._peers)
    assert not leader.must_regroup()
    monkeypatch.setattr(messages, "RETURN_S", 0.0)
    assert not leader.must_regroup()  # its ranks would have to import everything first
    imported, pool = threading.Event(), ThreadPoolExecutor()
    taken = pool.submit(one.take_part, imported.is_set, lambda: False)
    imported.set()
    until(leader.must_regroup)
    leader.announce_stop(StopRequest.now(REGROUP))
    until(two.stop_requested)
    assert one.stop_requested() is None
    ended = [NodeResult(node=each.node, ok=True, interrupted=True) for each in (leader, two)]
    with ThreadPoolExecutor() as pool:
        decision = pool.submit(leader.report_and_wait, ended[0], lambda _: restart())
        assert two.report_and_wait(ended[1], None).nodes == (0, 1, 2)
        assert decision.result().action == "restart"
    taken.result()
    assert one.members == (0, 1, 2)
    assert leader.stop_requested() is two.stop_requested() is None


def test_loss_between_count_and_start_leaves_enough_members(cluster, monkeypatch):
    leader, one, two = cluster.open(3, least=2)

    def lost_once_chosen(*found):
        CoordinatorServer._choose(leader, *found)
        two.end()
        until(lambda: 2 not in leader._peers)

    monkeypatch.setattr(leader, "_choose", lost_once_chosen)
    one.end()
    until(leader.check)
    leader._record(NodeResult(node=2, ok=False))
    assert leader.report_and_wait(NodeResult(node=0, ok=False), lambda _: restart()).nodes == (0, 2)
    assert leader.check()  # a loss of the attempt that now begins


def test_node_that_still_imports_is_left_out_of_a_restart(cluster, shrunk):
    leader, two = shrunk
    cluster.follower(1, 3)
    until(lambda: 1 in leader._peers)
    with ThreadPoolExecutor() as pool:
        told = pool.submit(two.report_and_wait, NodeResult(node=2, ok=False), None)
        assert leader.report_and_wait(NodeResult(node=0, ok=False), lambda _: restart()).nodes == (0, 2)
        assert told.result().nodes == (0, 2)
    assert leader._peers[1].waiting


def test_signal_to_a_node_that_waits_is_its_own_affair(cluster, shrunk):
    leader, two = shrunk
    one = cluster.follower(1, 3)
    until(lambda: 1 in leader._peers)
    one.announce_stop(StopRequest.now("SIGTERM"))
    with pytest.raises(StoppedBeforeStart):
        one.take_part(lambda: True, lambda: False)
    until(lambda: leader._peers[1].ready)
    assert leader.stop_requested() is two.stop_requested() is None


def test_each_loss_of_a_node_makes_its_return_wait_longer(cluster, shrunk, monkeypatch):
    leader, _ = shrunk
    monkeypatch.setattr(messages, "RETURN_S", 1.0)
    cluster.follower(1, 3)
    until(lambda: 1 in leader._peers)
    leader._peers[1].connection.opened -= 3
    leader._peers[1].ready = True
    assert leader.must_regroup()
    leader._losses[1] = 3
    assert not leader.must_regroup()


def test_node_that_waits_when_the_run_ends_ends_as_it(cluster, shrunk):
    leader, two = shrunk
    one = cluster.follower(1, 3)
    until(lambda: 1 in leader._peers)
    with ThreadPoolExecutor() as pool:
        pool.submit(two.report_and_wait, NodeResult(node=2, ok=True), None)
        leader.report_and_wait(NodeResult(node=0, ok=True), lambda _: stop(0))
    with pytest.raises(OverWithoutThisNode) as raised:
        one.gather()
    assert raised.value.exit_code == 0


def test_signal_counts_more_than_a_return(tmp_path):
    requests = StopRequests(tmp_path / "stop", lambda _request: None)
    requests.add(StopRequest.now(REGROUP))
    requests.add(StopRequest())  # a node sees its ranks leave before it hears why
    assert requests.stop().regroups
    requests.add(StopRequest.now("SIGTERM"))
    requests.regrouped()
    assert requests.stop().signal == "SIGTERM"
    assert unless_stopped(restart(), StopRequest.now(REGROUP)).action == "restart"
    assert unless_stopped(restart(), requests.stop()).exit_code == EXIT_RESUME


def test_request_of_a_return_is_over_with_it(tmp_path):
    requests = StopRequests(tmp_path / "stop", lambda _request: None)
    requests.add(StopRequest.now(REGROUP))
    requests.regrouped()
    assert requests.stop() is None


def test_node_that_leaves_when_it_would_be_taken_in_counts_as_lost_again(cluster, shrunk):
    leader, _ = shrunk
    one = cluster.follower(1, 3)
    until(lambda: 1 in leader._peers)
    leader._peers[1].ready = True
    one.end()
    until(lambda: 1 not in leader._peers)
    assert leader._losses[1] == 2
    assert not leader.check()


def test_node_with_another_number_of_ranks_is_refused(cluster, shrunk):
    """The global batch could not be spread over it and the others."""
    with pytest.raises(UsageError, match="2 ranks"):
        cluster.follower(1, 3, workers=2)


def test_ranks_may_differ_where_no_node_is_left_out(cluster):
    leader = cluster.leader(2, workers=1)
    one = cluster.follower(1, 2, workers=2)
    leader.gather()
    one.gather()


def test_node_that_was_silent_is_told_that_it_is_lost(cluster):
    """The first node has not left: the same command joins it again."""
    leader, one, _ = cluster.open(3, least=2)
    leader._drop_peer(1, "stopped answering")
    until(one.check)
    decision = one.report_and_wait(NodeResult(node=1, ok=False), None)
    assert (decision.exit_code, decision.cause) == (EXIT_RESUME, NODE_LOST)
