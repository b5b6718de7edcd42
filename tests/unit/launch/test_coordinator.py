"""What the supervisors of several nodes decide together, and what they do when one does not answer."""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from dsrun.errors import EXIT_RESUME
from dsrun.launch.coordinator import client as follower_module
from dsrun.launch.coordinator import messages
from dsrun.launch.coordinator import server as leader_module
from dsrun.launch.coordinator.messages import (
    Coordinator,
    NodeResult,
    decision_from_dict,
)
from dsrun.launch.supervisor.reaper import state_and_parent
from dsrun.runs.heartbeat import StopRequest
from tests.unit.launch.local_cluster import FAILED, NEVER, report_all, restart, stop, until


def test_coordinator_decision_reaches_all_nodes(cluster):
    """All nodes do what the first one decides."""
    coordinators = cluster.open(3)
    on_message = []
    ends = [
        NodeResult(node=0, ok=True),
        NodeResult(node=1, ok=False, failure=FAILED),
        NodeResult(node=2, ok=True),
    ]
    decisions = report_all(coordinators, ends, lambda found: on_message.extend(found) or restart("rank 1 was killed"))
    assert on_message == ends
    assert decisions == [restart("rank 1 was killed")] * 3
    # The second attempt begins with nothing left over from the first.
    assert not any(coordinator.check() for coordinator in coordinators)
    decisions = report_all(coordinators, [NodeResult(node=n, ok=True) for n in range(3)], lambda _: stop())
    assert decisions == [stop()] * 3


def test_coordinator_aborts_attempt_only_on_peer_failure(cluster):
    """A node whose ranks are done must not cut short the first one, which may still be writing the model."""
    leader, one, two = cluster.open(3)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(one.report_and_wait, NodeResult(node=1, ok=True), None)
        until(lambda: 1 in leader._ends)
        assert not leader.check()
        assert not two.check()
        second = pool.submit(two.report_and_wait, NodeResult(node=2, ok=False, failure=FAILED), None)
        until(leader.check)
        assert leader.report_and_wait(NodeResult(node=0, ok=False), lambda _: stop()) == stop()
        assert first.result() == second.result() == stop()


def test_node_0_failure_aborts_attempt_on_other_nodes(cluster):
    """A failure of the first node ends the attempt of the others."""
    leader, one = cluster.open(2)
    with ThreadPoolExecutor(1) as pool:
        decision = pool.submit(leader.report_and_wait, NodeResult(node=0, ok=False, failure=FAILED), lambda _: stop())
        until(one.check)
        assert one.report_and_wait(NodeResult(node=1, ok=False), None) == stop()
        assert decision.result() == stop()


def test_peer_failure_after_decision_aborts_next_attempt(cluster):
    """A failure that arrives right after a decision ends the next attempt.

    As when a node is lost before it has heard that the run is started again.
    """
    _, one = cluster.open(2)
    for message in ({"decision": asdict(restart())}, {"abort": 2}):
        one.on_message(one._connection, message)
    assert one.report_and_wait(NodeResult(node=1, ok=False), None) == restart()
    assert one.check()


def test_killed_node_reported_lost_at_once(cluster):
    """A killed node is lost at once, and named."""
    leader = cluster.leader(3)
    children = [cluster.process(1, 3), cluster.process(2, 3)]
    leader.gather()
    assert [child.stdout.readline() for child in children] == ["began 0\n"] * 2
    children[0].kill()
    until(leader.check)
    assert children[1].stdout.readline() == "over\n"
    seen = []
    leader.report_and_wait(NodeResult(node=0, ok=False), lambda ends: seen.extend(ends) or stop())
    assert (seen[1].failure.cause, seen[1].failure.node) == ("node_lost", 1)
    assert "machine-1" in seen[1].failure.message
    assert seen[2].failure is None
    assert children[1].stdout.readline() == "stop 3 enough\n"


def test_hung_node_lost_after_silence_timeout(cluster, monkeypatch):
    """A node that hangs is lost once it has been silent for too long."""
    leader = cluster.leader(2)
    child = cluster.process(1, 2)
    leader.gather()
    assert child.stdout.readline() == "began 0\n"
    connection, began = leader._peers[1].connection, time.monotonic()
    until(lambda: connection.last_received > began + 3)  # it says every second that it is alive
    os.kill(child.pid, signal.SIGSTOP)
    while state_and_parent(child.pid)[0] != "T":
        time.sleep(0.01)
    limit = time.monotonic() - connection.last_received + 2
    monkeypatch.setattr(leader_module, "PEER_TIMEOUT_S", limit)
    until(leader.check)
    assert time.monotonic() - connection.last_received > limit
    seen = []
    leader.report_and_wait(NodeResult(node=0, ok=False), lambda ends: seen.extend(ends) or stop())
    assert "stopped answering" in seen[1].failure.message


def test_node_given_up_by_node_0_is_lost_and_told_so(cluster, monkeypatch):
    """It was too slow, and neither it nor node 0 was ended by a signal: what started it may start it again."""
    leader, one = cluster.open(2)
    monkeypatch.setattr(messages, "STRAGGLER_TIMEOUT_S", 0.0)
    with ThreadPoolExecutor(1) as pool:
        ended = NodeResult(node=0, ok=False, failure=FAILED)
        pool.submit(leader.report_and_wait, ended, lambda _: stop())
        until(lambda: one._left)
        decision = one.report_and_wait(NodeResult(node=1, ok=False), None)
    assert (decision.action, decision.exit_code, decision.cause) == ("stop", EXIT_RESUME, "node_lost")
    assert "this one as lost: it did not end its ranks" in decision.why


def test_run_ends_when_node_0_is_lost(cluster):
    """Without the first node the run is over."""
    leader, one = cluster.open(2)
    leader.end()  # no good-bye
    until(one.check)
    decision = one.report_and_wait(NodeResult(node=1, ok=False), None)
    assert (decision.action, decision.exit_code) == ("stop", 1)
    assert "the first node (127.0.0.1) is lost" in decision.why


def test_node_0_that_does_not_decide_is_lost(cluster, monkeypatch):
    """Its connection lives, and what decides waits for a file server."""
    _, one = cluster.open(2)
    monkeypatch.setattr(messages, "STRAGGLER_TIMEOUT_S", 0.1)
    monkeypatch.setattr(messages, "DECISION_S", 0.1)
    one.return_timeout_s = 0.1
    decision = one.report_and_wait(NodeResult(node=1, ok=False), None)
    assert (decision.action, decision.exit_code) == ("stop", 1)


def test_interrupted_node_is_not_awaited(cluster):
    """A node that its user ended by a signal is not waited for."""
    leader, one = cluster.open(2)
    one.close()
    until(leader.check)
    seen = []
    leader.report_and_wait(NodeResult(node=0, ok=False), lambda ends: seen.extend(ends) or stop())
    assert (seen[1].failure.cause, seen[1].failure.message) == (
        "interrupted",
        "node 1 (machine-1) was ended by a signal",
    )


def test_interrupted_node_0_ends_run_with_resume_code(cluster):
    """A first node that its user ended stops the run with the exit code for resuming."""
    leader, one = cluster.open(2)
    leader.close()
    until(one.check)
    decision = one.report_and_wait(NodeResult(node=1, ok=False), None)
    assert (decision.action, decision.exit_code) == ("stop", EXIT_RESUME)
    assert "ended by a signal" in decision.why


def test_silent_node_0_lost_after_silence_timeout(cluster, monkeypatch):
    """A first node that falls silent is lost."""
    leader, one = cluster.open(2)
    leader.on_timer = lambda: None
    # Not before they have met: a follower that a busy machine has held up for a second would be lost at once.
    monkeypatch.setattr(follower_module, "PEER_TIMEOUT_S", 1.0)
    until(one.check)


def test_lost_node_rejoins_at_current_attempt(cluster):
    """A lost node can come back, and is told the current attempt."""
    leader, one = cluster.open(2)
    one.end()  # no good-bye
    until(leader.check)
    with ThreadPoolExecutor(1) as pool:
        decision = pool.submit(leader.report_and_wait, NodeResult(node=0, ok=False), lambda _: restart())
        again = cluster.follower(1, 2)
        again.gather()
        assert decision.result() == restart()
    assert again.attempt == 1
    assert not leader.check()
    decisions = report_all([leader, again], [NodeResult(node=n, ok=True) for n in (0, 1)], lambda _: stop(0))
    assert decisions == [stop(0)] * 2


def test_lost_node_rejoin_timeout_ends_run(cluster):
    """A lost node that stays away ends the run."""
    leader, one = cluster.open(2, timeout_s=1.0)
    one.end()
    until(leader.check)
    decision = leader.report_and_wait(NodeResult(node=0, ok=False), lambda _: restart())
    assert (decision.action, decision.exit_code) == ("stop", 1)
    assert "node 1 (machine-1) did not come back within 1 s" in decision.why


def test_no_wait_for_lost_node_that_cannot_rejoin(cluster):
    """SLURM does not start a lost task again within the job."""
    leader, one = cluster.open(2, returns=False, timeout_s=NEVER)
    one.end()
    until(leader.check)
    decision = leader.report_and_wait(NodeResult(node=0, ok=False), lambda _: restart())
    assert (decision.action, decision.why) == ("stop", "node 1 (machine-1) is lost")


def test_straggler_node_does_not_hold_up_others(cluster, monkeypatch):
    """A node that cannot end its attempt does not hold up the others."""
    monkeypatch.setattr(messages, "STRAGGLER_TIMEOUT_S", 0.5)
    leader, one = cluster.open(2)
    seen = []
    leader.report_and_wait(NodeResult(node=0, ok=False, failure=FAILED), lambda ends: seen.extend(ends) or stop())
    assert seen[1].failure.cause == "node_lost"
    until(one.check)


def test_stop_signal_on_one_node_stops_all_without_restart(cluster):
    """A signal to one node reaches all of them and forbids restarts."""
    leader, one, two = cluster.open(3)
    one.announce_stop(StopRequest("SIGTERM"))
    until(leader.stop_requested)
    until(two.stop_requested)
    assert two.stop_requested().signal == "SIGTERM"
    ends = [NodeResult(node=n, ok=False) for n in range(3)]
    decisions = report_all([leader, one, two], ends, lambda _: restart())
    assert {(each.action, each.exit_code) for each in decisions} == {("stop", EXIT_RESUME)}


def test_stop_signal_on_node_0_reaches_all_nodes(cluster):
    """A signal to the first node reaches all of them."""
    leader, one = cluster.open(2)
    leader.announce_stop(StopRequest("SIGUSR1"))
    until(one.stop_requested)
    assert leader.stop_requested().signal == "SIGUSR1"


def test_single_node_coordinator_decides_locally():
    """A single node decides for itself."""
    seen = []
    alone = Coordinator()
    ended = NodeResult(node=0, ok=False, failure=FAILED)
    assert alone.report_and_wait(ended, lambda ends: seen.extend(ends) or restart()) == restart()
    assert seen == [ended]
    assert not alone.check()
    alone.announce_stop(StopRequest("SIGTERM"))
    assert alone.report_and_wait(ended, lambda _: restart()).exit_code == EXIT_RESUME
    assert alone.report_and_wait(ended, lambda _: stop()) == stop()


def test_coordinator_messages_json_round_trip():
    """Node results and decisions survive the way through JSON."""
    ended = NodeResult(node=2, ok=False, interrupted=True, failure=FAILED)
    assert NodeResult.from_dict(json.loads(json.dumps(asdict(ended)))) == ended
    assert decision_from_dict(json.loads(json.dumps(asdict(stop())))) == stop()
