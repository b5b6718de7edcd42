"""The supervisors' council over real sockets: one process as all nodes, and processes that are killed or stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dsrun.errors import EXIT_RESUME, UsageError
from dsrun.launch import follower as follower_module
from dsrun.launch import leader as leader_module
from dsrun.launch.council import (
    Alone,
    Ended,
    RendezvousError,
    Stopped,
    decision_as_dict,
    decision_from_dict,
    shared_key,
)
from dsrun.launch.follower import Seat, join
from dsrun.launch.leader import Leader
from dsrun.launch.policy import Decision, Failure, Remedy
from dsrun.launch.wire import listen
from dsrun.system.net import free_port

KEY = shared_key(run="test", secret="word")
FAILED = Failure(cause="rank_killed", rank=1, exit_code=-9, message="rank 1 was killed", step=7)
NEVER = 1e9

# A node of its own: says when it takes part, and then what it is told.
NODE = """
import sys
from dsrun.launch.council import Ended, shared_key
from dsrun.launch.follower import Seat, join
host, port, node, nodes, ok = sys.argv[1], *map(int, sys.argv[2:])
key = shared_key(run="test", secret="word")
council = join(host, port, Seat(node=node, nodes=nodes, name=f"machine-{node}", key=key))
council.gather()
print("began", council.attempt, flush=True)
while not ok and not council.check():
    pass
print("over" if council.check() else "ended", flush=True)
decision = council.settle(Ended(node=node, ok=bool(ok)), None)
print(decision.action, decision.exit_code, decision.why, flush=True)
council.close()
"""


def restart(why="again"):
    return Decision(action="restart", exit_code=1, wait_s=0.0, why=why, remedy=Remedy(halvings=2))


def stop(code=3):
    return Decision(action="stop", exit_code=code, wait_s=0.0, why="enough", remedy=Remedy(offload="cpu"))


def until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


class Town:
    """Councils in one process, closed at the end; `open(3)` are the leader and two followers, gathered."""

    def __init__(self):
        self.host = "127.0.0.1"
        self.port = free_port()
        self.councils = []
        self.children = []

    def leader(self, nodes, **options):
        options = {"facts": {"output": "runs/x"}, "patience_s": 20.0, **options}
        return self._kept(Leader(listen(self.host, self.port), nodes, KEY, **options))

    def follower(self, node, nodes, *, key=KEY, patience_s=20.0):
        seat = Seat(node=node, nodes=nodes, name=f"machine-{node}", key=key)
        return self._kept(join(self.host, self.port, seat, patience_s=patience_s))

    def open(self, nodes, **options):
        leader = self.leader(nodes, **options)
        followers = [self.follower(node, nodes) for node in range(1, nodes)]
        for council in (leader, *followers):
            council.gather()
        return leader, *followers

    def process(self, node, nodes, *, ok=False):
        argv = [sys.executable, "-c", NODE, self.host, str(self.port), str(node), str(nodes), str(int(ok))]
        root = str(Path(__file__).parents[3])
        child = subprocess.Popen(
            argv, env={**os.environ, "PYTHONPATH": root}, stdout=subprocess.PIPE, text=True
        )
        self.children.append(child)
        return child

    def _kept(self, council):
        self.councils.append(council)
        return council

    def close(self):
        for council in self.councils:
            council.close()
        for child in self.children:
            child.kill()
            child.wait()
            child.stdout.close()


@pytest.fixture
def town():
    place = Town()
    yield place
    place.close()


def settle_all(councils, ends, decide):
    """All councils settle at once, as the machines of a cluster do; `decide` is the first node's."""

    def settle(council, ended):
        return council.settle(ended, decide if council.node == 0 else None)

    with ThreadPoolExecutor(len(councils)) as pool:
        return list(pool.map(settle, councils, ends))


def test_all_nodes_do_what_the_first_one_decides(town):
    councils = town.open(3)
    heard = []
    ends = [Ended(node=0, ok=True), Ended(node=1, ok=False, failure=FAILED), Ended(node=2, ok=True)]
    decisions = settle_all(councils, ends, lambda found: heard.extend(found) or restart("rank 1 was killed"))
    assert heard == ends
    assert decisions == [restart("rank 1 was killed")] * 3
    # The second attempt begins with nothing left over from the first.
    assert not any(council.check() for council in councils)
    decisions = settle_all(councils, [Ended(node=n, ok=True) for n in range(3)], lambda _: stop())
    assert decisions == [stop()] * 3


def test_only_a_failure_elsewhere_ends_an_attempt(town):
    """A node whose ranks are done must not cut short the first one, which may still be writing the model."""
    leader, one, two = town.open(3)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(one.settle, Ended(node=1, ok=True), None)
        until(lambda: 1 in leader._ends)
        assert not leader.check()
        assert not two.check()
        second = pool.submit(two.settle, Ended(node=2, ok=False, failure=FAILED), None)
        until(leader.check)
        assert leader.settle(Ended(node=0, ok=False), lambda _: stop()) == stop()
        assert first.result() == second.result() == stop()


def test_a_failure_of_the_first_node_ends_the_others_attempt(town):
    leader, one = town.open(2)
    with ThreadPoolExecutor(1) as pool:
        decision = pool.submit(leader.settle, Ended(node=0, ok=False, failure=FAILED), lambda _: stop())
        until(one.check)
        assert one.settle(Ended(node=1, ok=False), None) == stop()
        assert decision.result() == stop()


def test_nodes_may_come_before_the_first_one(town):
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(town.follower, 1, 2)
        time.sleep(0.5)  # refused once or twice by then
        leader = town.leader(2)
        one = early.result()
    leader.gather()
    one.gather()
    assert one.facts == {"output": "runs/x"}


def test_a_killed_node_is_lost_at_once_and_named(town, monkeypatch):
    monkeypatch.setattr(leader_module, "SILENCE_S", NEVER)
    leader = town.leader(3)
    children = [town.process(1, 3), town.process(2, 3)]
    leader.gather()
    assert [child.stdout.readline() for child in children] == ["began 0\n"] * 2
    children[0].kill()
    until(leader.check)
    assert children[1].stdout.readline() == "over\n"
    seen = []
    leader.settle(Ended(node=0, ok=False), lambda ends: seen.extend(ends) or stop())
    assert (seen[1].failure.cause, seen[1].failure.node) == ("node_lost", 1)
    assert "machine-1" in seen[1].failure.message
    assert seen[2].failure is None
    assert children[1].stdout.readline() == "stop 3 enough\n"


def test_a_node_that_hangs_is_lost_by_its_silence(town, monkeypatch):
    monkeypatch.setattr(leader_module, "SILENCE_S", 2.5)
    leader = town.leader(2)
    child = town.process(1, 2)
    leader.gather()
    assert child.stdout.readline() == "began 0\n"
    time.sleep(3)
    assert not leader.check()  # it says every second that it is alive
    os.kill(child.pid, signal.SIGSTOP)
    until(leader.check)
    seen = []
    leader.settle(Ended(node=0, ok=False), lambda ends: seen.extend(ends) or stop())
    assert "did not answer" in seen[1].failure.message


def test_without_the_first_node_the_run_is_over(town, monkeypatch):
    monkeypatch.setattr(follower_module, "SILENCE_S", NEVER)
    leader, one = town.open(2)
    leader.end()  # no good-bye
    until(one.check)
    decision = one.settle(Ended(node=1, ok=False), None)
    assert (decision.action, decision.exit_code) == ("stop", 1)
    assert "the first node (127.0.0.1) is lost" in decision.why


def test_a_node_that_was_ended_by_its_user_is_not_waited_for(town):
    leader, one = town.open(2)
    one.close()
    until(leader.check)
    seen = []
    leader.settle(Ended(node=0, ok=False), lambda ends: seen.extend(ends) or stop())
    assert (seen[1].failure.cause, seen[1].failure.message) == (
        "interrupted",
        "node 1 (machine-1) was ended by a signal",
    )


def test_a_first_node_that_was_ended_by_its_user_ends_the_run_for_now(town):
    leader, one = town.open(2)
    leader.close()
    until(one.check)
    decision = one.settle(Ended(node=1, ok=False), None)
    assert (decision.action, decision.exit_code) == ("stop", EXIT_RESUME)
    assert "ended by a signal" in decision.why


def test_a_silent_first_node_is_lost(town, monkeypatch):
    monkeypatch.setattr(follower_module, "SILENCE_S", 1.0)
    leader, one = town.open(2)
    leader.tick = lambda: None
    until(one.check)


def test_nodes_that_do_not_come_are_named(town):
    leader = town.leader(4, patience_s=1.0)
    town.follower(2, 4)
    with pytest.raises(RendezvousError, match=r"nodes 1, 3 did not come within 1 s"):
        leader.gather()


def test_a_first_node_that_does_not_come_is_named(town):
    with pytest.raises(
        RendezvousError, match=rf"node 1 could not reach .*127\.0\.0\.1:{town.port} within 0 s"
    ):
        town.follower(1, 2, patience_s=0.0)


def test_a_first_node_that_gives_up_says_so(town):
    leader = town.leader(3)
    one = town.follower(1, 3)
    leader.close()
    with pytest.raises(RendezvousError, match="has left before all nodes were there"):
        one.gather()


def test_a_lost_node_can_come_back_and_knows_the_attempt(town):
    leader, one = town.open(2)
    one.end()  # no good-bye
    until(leader.check)
    with ThreadPoolExecutor(1) as pool:
        decision = pool.submit(leader.settle, Ended(node=0, ok=False), lambda _: restart())
        again = town.follower(1, 2)
        again.gather()
        assert decision.result() == restart()
    assert again.attempt == 1
    assert not leader.check()
    decisions = settle_all([leader, again], [Ended(node=n, ok=True) for n in (0, 1)], lambda _: stop(0))
    assert decisions == [stop(0)] * 2


def test_a_lost_node_that_stays_away_ends_the_run(town):
    leader, one = town.open(2, patience_s=1.0)
    one.end()
    until(leader.check)
    decision = leader.settle(Ended(node=0, ok=False), lambda _: restart())
    assert (decision.action, decision.exit_code) == ("stop", 1)
    assert "node 1 (machine-1) did not come back within 1 s" in decision.why


def test_where_no_node_comes_back_none_is_waited_for(town):
    """SLURM does not start a lost task again within the job."""
    leader, one = town.open(2, returns=False, patience_s=NEVER)
    one.end()
    until(leader.check)
    decision = leader.settle(Ended(node=0, ok=False), lambda _: restart())
    assert (decision.action, decision.why) == ("stop", "node 1 (machine-1) is lost")


def test_a_node_that_cannot_end_its_attempt_does_not_hold_up_the_others(town, monkeypatch):
    monkeypatch.setattr(leader_module, "STRAGGLE_S", 0.5)
    leader, one = town.open(2)
    seen = []
    leader.settle(Ended(node=0, ok=False, failure=FAILED), lambda ends: seen.extend(ends) or stop())
    assert seen[1].failure.cause == "node_lost"
    until(one.check)


def test_a_signal_to_one_node_reaches_all_and_forbids_restarts(town):
    leader, one, two = town.open(3)
    one.announce_stop("SIGTERM")
    until(leader.stop_asked)
    until(two.stop_asked)
    assert two.stop_asked() == "SIGTERM"
    ends = [Ended(node=n, ok=False) for n in range(3)]
    decisions = settle_all([leader, one, two], ends, lambda _: restart())
    assert {(each.action, each.exit_code) for each in decisions} == {("stop", EXIT_RESUME)}


def test_a_signal_to_the_first_node_reaches_all(town):
    leader, one = town.open(2)
    leader.announce_stop("SIGUSR1")
    until(one.stop_asked)
    assert leader.stop_asked() is None


def test_a_signal_before_all_are_there_ends_the_wait_everywhere(town):
    leader = town.leader(3)
    one = town.follower(1, 3)
    one.announce_stop("SIGTERM")
    for council in (leader, one):
        with pytest.raises(Stopped) as stopped:
            council.gather()
        assert stopped.value.exit_code == EXIT_RESUME


@pytest.mark.parametrize("first", [True, False])
def test_who_was_signalled_before_all_are_there_may_leave_at_once(town, first):
    """As `convened` does; the others hear of the signal before they miss the one who leaves."""
    leader = town.leader(3)
    one = town.follower(1, 3)
    signalled, other = (leader, one) if first else (one, leader)
    signalled.announce_stop("SIGTERM")
    signalled.close()
    with pytest.raises(Stopped):
        other.gather()


def test_strangers_are_not_let_in(town):
    leader = town.leader(2)
    with pytest.raises(UsageError, match="belongs to another run"):
        town.follower(1, 2, key=shared_key(run="test", secret="other"))
    with socket.create_connection((town.host, town.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert json.loads(stranger.makefile().readline())["dsrun"]
    town.follower(1, 2)
    leader.gather()


def test_a_connection_that_says_nothing_holds_nobody_up(town, monkeypatch):
    monkeypatch.setattr(leader_module, "_GUEST_S", 0.5)
    leader = town.leader(2)
    with socket.create_connection((town.host, town.port)) as silent:
        town.follower(1, 2)
        leader.gather()
        silent.settimeout(20)
        while silent.recv(4096):  # its end, not a time-out
            pass


def test_the_follower_is_not_fooled_by_another_program_on_the_port(town, monkeypatch):
    """It goes on looking for the first node until its time is up."""
    monkeypatch.setattr(follower_module, "_CONNECT_S", 0.5)
    with listen(town.host, town.port) as other:
        talker = threading.Thread(target=_talk, args=(other,), daemon=True)
        talker.start()
        with pytest.raises(RendezvousError, match="could not reach"):
            town.follower(1, 2, patience_s=0.1)


def _talk(server):
    sock, _ = server.accept()
    with sock:
        sock.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")


def test_two_machines_cannot_be_the_same_node(town):
    town.leader(3)
    town.follower(1, 3)
    with pytest.raises(UsageError, match="machine-1 is node 1 already"):
        town.follower(1, 3)


def test_all_nodes_must_be_told_the_same_number_of_nodes(town):
    town.leader(3)
    with pytest.raises(UsageError, match="started for 2 nodes, the first one for 3"):
        town.follower(1, 2)


def test_a_node_number_that_does_not_exist_is_refused(town):
    town.leader(3)
    with pytest.raises(UsageError, match="there is no node 3"):
        town.follower(3, 3)


def test_it_meets_over_ipv6_too(town):
    town.host = "::1"
    _, one = town.open(2)
    assert one.local_address == "::1"


def test_all_addresses_take_ipv4_and_ipv6():
    with listen("some-host", port := free_port()):
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port)).close()


def test_a_taken_port_is_a_usage_error(town):
    with (
        listen(town.host, town.port),
        pytest.raises(UsageError, match=rf"port {town.port}, .* --master-port"),
    ):
        listen(town.host, town.port)


def test_alone_decides_for_itself():
    seen = []
    alone = Alone()
    ended = Ended(node=0, ok=False, failure=FAILED)
    assert alone.settle(ended, lambda ends: seen.extend(ends) or restart()) == restart()
    assert seen == [ended]
    assert not alone.check()
    alone.announce_stop("SIGTERM")
    assert alone.settle(ended, lambda _: restart()).exit_code == EXIT_RESUME
    assert alone.settle(ended, lambda _: stop()) == stop()


def test_what_is_said_survives_the_wire():
    ended = Ended(node=2, ok=False, interrupted=True, failure=FAILED)
    assert Ended.from_dict(json.loads(json.dumps(ended.as_dict()))) == ended
    assert decision_from_dict(json.loads(json.dumps(decision_as_dict(stop())))) == stop()


def test_the_key_depends_on_the_run_and_on_the_secret():
    keys = {shared_key(run=run, secret=secret) for run in "ab" for secret in (None, "x")}
    assert len(keys) == 4
