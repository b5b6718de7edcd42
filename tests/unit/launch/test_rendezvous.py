"""How the supervisors of several nodes connect, and which connections they reject."""

from __future__ import annotations

import json
import os
import resource
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from dsrun import __version__
from dsrun.errors import EXIT_RESUME, UsageError
from dsrun.launch.coordinator import messages
from dsrun.launch.coordinator import rendezvous as follower_module
from dsrun.launch.coordinator.messages import RendezvousError, StoppedBeforeStart, format_nodes, shared_key
from dsrun.launch.coordinator.rendezvous import join, rendezvous
from dsrun.launch.coordinator.transport import hmac_digest, listen
from dsrun.launch.signals import StartupSignals
from dsrun.runs.heartbeat import StopRequest
from dsrun.system import net
from tests.ports import free_ports
from tests.unit.launch.local_cluster import KEY


def test_rendezvous_nodes_may_come_before_node_0(cluster):
    """Nodes may come before the first one."""
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(cluster.follower, 1, 2)
        time.sleep(0.5)  # refused once or twice by then
        leader = cluster.leader(2)
        one = early.result()
    leader.gather()
    one.gather()
    assert one.run_info == {"output": "runs/x"}


def test_rendezvous_timeout_names_missing_nodes(cluster):
    """Nodes that do not come are named."""
    leader = cluster.leader(4, timeout_s=1.0)
    cluster.follower(2, 4)
    with pytest.raises(RendezvousError, match=r"nodes 1, 3 did not join within 1 s"):
        leader.gather()


def test_rendezvous_timeout_names_unreachable_node_0(cluster):
    """A first node that does not come is named."""
    with pytest.raises(
        RendezvousError, match=rf"node 1 could not reach .*127\.0\.0\.1 within 0 s: port {cluster.port}: "
    ):
        cluster.follower(1, 2, timeout_s=0.0)


def test_rendezvous_node_0_giving_up_is_reported(cluster):
    """A first node that gives up says so."""
    leader = cluster.leader(3)
    one = cluster.follower(1, 3)
    leader.close()
    with pytest.raises(RendezvousError, match="disconnected before all nodes had joined"):
        one.gather()


def test_rendezvous_signal_ends_wait_on_all_nodes(cluster):
    """A signal before all nodes are there ends the wait everywhere."""
    leader = cluster.leader(3)
    one = cluster.follower(1, 3)
    one.announce_stop(StopRequest("SIGTERM"))
    for coordinator in (leader, one):
        with pytest.raises(StoppedBeforeStart) as stopped:
            coordinator.gather()
        assert stopped.value.exit_code == EXIT_RESUME


@pytest.mark.parametrize("first", [True, False])
def test_rendezvous_signalled_node_may_leave_at_once(cluster, first):
    """As `rendezvous` does; the others hear of the signal before they miss the one who leaves."""
    leader = cluster.leader(3)
    one = cluster.follower(1, 3)
    signalled, other = (leader, one) if first else (one, leader)
    signalled.announce_stop(StopRequest("SIGTERM"))
    signalled.close()
    with pytest.raises(StoppedBeforeStart):
        other.gather()


def test_rendezvous_node_0_sends_stop_before_goodbye(cluster, monkeypatch):
    """What a first node sends as it leaves comes in order.

    Its main thread says good-bye, and may come between while the other one is about to tell of the signal.
    """
    leader = cluster.leader(2)
    one = cluster.follower(1, 2)
    post, telling, said = leader.post, threading.Event(), []

    def slowly(connection, message):
        if "stop" in message and threading.current_thread() is leader._thread:
            telling.set()
            time.sleep(0.5)
        said.extend({"stop", "bye"} & message.keys())
        post(connection, message)

    monkeypatch.setattr(leader, "post", slowly)
    leader.announce_stop(StopRequest("SIGTERM"))
    assert telling.wait(60)
    leader.close()
    assert said.index("stop") < said.index("bye")
    with pytest.raises(StoppedBeforeStart):
        one.gather()


def test_rendezvous_rejects_foreign_connections(cluster):
    """Neither a node of another run nor another program is let in."""
    leader = cluster.leader(2)
    with pytest.raises(UsageError, match="belongs to another run"):
        cluster.follower(1, 2, key=shared_key(run="test", secret="other"))
    with socket.create_connection((cluster.host, cluster.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert json.loads(stranger.makefile().readline())["dsrun"]
    cluster.follower(1, 2)
    leader.gather()


@pytest.mark.parametrize(
    "words",
    [
        b'{"proof": "\xc3\xa9"}',
        b'{"proof": "\\ud800"}',
        b"[" * 100_000,
        b'{"node": [1], "nodes": {}}',
        b"\xff",
    ],
)
def test_rendezvous_survives_malformed_handshake(cluster, words):
    """A port scanner must not end the thread that carries all words of the run."""
    leader = cluster.leader(2)
    with socket.create_connection((cluster.host, cluster.port)) as stranger:
        stranger.sendall(words + b"\n")
        stranger.settimeout(60)
        while stranger.recv(4096):  # until it is shown out
            pass
    cluster.follower(1, 2)
    leader.gather()


def test_rendezvous_silent_connection_times_out(cluster, monkeypatch):
    """A connection that says nothing holds nobody up."""
    monkeypatch.setattr(messages, "HANDSHAKE_TIMEOUT_S", 0.5)
    leader = cluster.leader(2)
    with socket.create_connection((cluster.host, cluster.port)) as silent:
        cluster.follower(1, 2)
        leader.gather()
        silent.settimeout(60)
        while silent.recv(4096):  # its end, not a time-out
            pass


@pytest.mark.parametrize("words", [[b"SSH-2.0-OpenSSH_9.6\r\n"], [b'{"challenge": 1}\n', b'{"proof": "\xc3\xa9"}\n']])
def test_rendezvous_client_ignores_other_program_on_port(cluster, monkeypatch, words):
    """It goes on looking for the first node until its time is up."""
    monkeypatch.setattr(follower_module, "_HANDSHAKE_S", 0.5)
    with listen(cluster.host, cluster.port) as other:
        talker = threading.Thread(target=_talk, args=(other, words), daemon=True)
        talker.start()
        with pytest.raises(RendezvousError, match="could not reach"):
            cluster.follower(1, 2, timeout_s=0.1)


def _talk(server, words):
    sock, _ = server.accept()
    with (
        sock,
        suppress(OSError),
    ):  # the follower, which does not like these words, may hang up in the midst of them
        for each in words:
            sock.sendall(each)
            sock.recv(4096)


def test_rendezvous_duplicate_node_rank_refused(cluster):
    """Two machines cannot be the same node."""
    cluster.leader(3)
    cluster.follower(1, 3)
    with pytest.raises(UsageError, match="machine-1 is node 1 already"):
        cluster.follower(1, 3)


def test_rendezvous_node_count_mismatch_refused(cluster):
    """All nodes must be told the same number of nodes."""
    cluster.leader(3)
    with pytest.raises(UsageError, match="started for 2 nodes, the first one for 3"):
        cluster.follower(1, 2)


def test_rendezvous_node_rank_out_of_range_refused(cluster):
    """A node rank that does not exist is refused."""
    cluster.leader(3)
    with pytest.raises(UsageError, match="node 3 is out of range"):
        cluster.follower(3, 3)


def test_rendezvous_over_ipv6(cluster):
    cluster.host = "::1"
    _, one = cluster.open(2)
    assert one.local_address == "::1"


def test_listen_on_all_addresses_takes_ipv4_and_ipv6():
    with listen("some-host", port := free_ports()):
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port)).close()


def test_listen_only_on_address_of_master(monkeypatch):
    """A name with one address of this machine is listened to there, and nowhere else."""
    monkeypatch.setattr(net, "resolve", lambda host: ["127.0.1.1", "127.0.0.2"])
    monkeypatch.setattr(net, "addresses", lambda: {"lo": ["127.0.0.1"], "eth0": ["127.0.0.2"]})
    monkeypatch.setattr(net.ipaddress.IPv4Address, "is_loopback", property(lambda own: str(own) != "127.0.0.2"))
    with listen("node-0", port := free_ports()):
        socket.create_connection(("127.0.0.2", port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def test_host_name_of_peer_is_made_printable(cluster):
    """A peer's name that holds line breaks and escape sequences reaches messages as visible escapes."""
    cluster.leader(3)
    connection = socket.create_connection((cluster.host, cluster.port))
    with connection, connection.makefile("rw") as stream:
        challenge = json.loads(stream.readline())["challenge"]
        proof = hmac_digest(KEY, "follower", challenge, 1, 3)
        own = {"node": 1, "nodes": 3, "host": "x\nerror: \x1b]0;y\x07", "version": __version__, "challenge": "c"}
        stream.write(json.dumps({**own, "proof": proof}) + "\n")
        stream.flush()
        assert "welcome" in json.loads(stream.readline())
        with pytest.raises(UsageError, match=r"x\\nerror: \\x1b\]0;y\\x07 is node 1 already"):
            cluster.follower(1, 3)


def test_listener_without_file_descriptors_does_not_spin(cluster):
    """Where no more files may be open, connections wait in the backlog, and the thread does not take a processor."""
    cluster.leader(3)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = socket.socket()
    used = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, hard))
    held = []
    try:
        with suppress(OSError):
            while True:
                held.append(os.dup(0))
        waiting.connect((cluster.host, cluster.port))
        before = time.process_time()
        time.sleep(1.0)
        assert time.process_time() - before < 0.5
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in held:
            os.close(each)
        waiting.close()


def test_master_port_in_use_is_usage_error(cluster):
    """A port that is taken is a usage error."""
    with (
        listen(cluster.host, cluster.port),
        pytest.raises(UsageError, match=rf"port {cluster.port}, .* --master-port"),
    ):
        listen(cluster.host, cluster.port)


def test_handshake_key_depends_on_run_and_secret():
    keys = {shared_key(run=run, secret=secret) for run in "ab" for secret in (None, "x")}
    assert len(keys) == 4


def test_node_0_tells_why_it_has_refused_a_node(cluster, monkeypatch):
    """At once, and where what does not come back has been refused for good, that is the end of the wait."""
    noted = []
    leader = cluster.leader(3, notify=noted.append, returns=False)
    with pytest.raises(UsageError, match="belongs to another run"):
        cluster.follower(1, 3, key=shared_key(run="test", secret="other"))
    monkeypatch.setattr(follower_module, "__version__", "0.0.1")
    with pytest.raises(UsageError, match=r"it has dsrun 0\.0\.1"):
        cluster.follower(2, 3)
    why = r"nodes 1, 2 did not join; node 1 \(machine-1\) was refused: it belongs to another run.*; node 2 .*0\.0\.1"
    with pytest.raises(RendezvousError, match=why):
        leader.gather()


def test_refused_node_that_may_come_back_is_waited_for(cluster):
    noted = []
    leader = cluster.leader(2, notify=noted.append)
    with pytest.raises(UsageError, match="started for 3 nodes"):
        cluster.follower(1, 3)
    cluster.follower(1, 2)
    leader.gather()
    assert noted in ([], ["node 1 (machine-1) was refused: it was started for 3 nodes, the first one for 2"])


def test_nodes_say_whom_they_wait_for(cluster, monkeypatch):
    monkeypatch.setattr(messages, "TELL_S", 0.1)
    noted = []
    with pytest.raises(RendezvousError):
        join(cluster.place(1, 2), name="machine-1", key=KEY, timeout_s=1.0, notify=noted.append)
    assert [line.partition(",")[0] for line in noted] == ["waiting for node 0 at 127.0.0.1"]
    leader = cluster.leader(3, timeout_s=1.0, notify=noted.append)
    with pytest.raises(RendezvousError):
        leader.gather()
    assert noted[1].startswith("waiting for nodes 1, 2, for ")


def test_first_node_takes_other_ports_where_those_of_its_job_are_taken(cluster):
    """The others look for it there, pass by whoever has the first one, and are told where the ranks meet."""
    port = free_ports(2)
    places = [replace(cluster.place(node, 2), port=port, chosen_port=True) for node in (0, 1)]
    taken = [listen("127.0.0.1", each) for each in (port, port + 1)]
    found = {}

    def meet(place):
        with rendezvous(place, StartupSignals(), run_info={}, secret="word", name="machine", timeout_s=60) as one:
            found[place.node] = one.run_info["port"]

    other = threading.Thread(target=_talk, args=(taken[1], [b"SSH-2.0-OpenSSH_9.6\r\n"]), daemon=True)
    other.start()
    with taken[0], taken[1], ThreadPoolExecutor(2) as pool:
        list(pool.map(meet, places))
    assert found[0] == found[1]
    assert port < int(found[0]) <= port + 10


def test_named_port_that_is_taken_is_refused(cluster):
    place = replace(cluster.place(0, 2), port=cluster.port)
    with (
        listen("127.0.0.1", cluster.port),
        pytest.raises(UsageError, match=f"port {cluster.port} is taken"),
        rendezvous(place, StartupSignals(), run_info={}, secret=None, name="machine"),
    ):
        pass


class _EnoughTriesError(Exception):
    pass


def _pauses(cluster, monkeypatch, tries):
    """Between so many tries to join, each time the longest that it may be."""
    found = []

    def sleep(seconds):
        found.append(seconds)
        if len(found) == tries:
            raise _EnoughTriesError

    monkeypatch.setattr(follower_module, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    monkeypatch.setattr(follower_module.random, "uniform", lambda _least, most: most)
    with pytest.raises(_EnoughTriesError):
        cluster.follower(1, 2)
    return found


def test_rendezvous_nodes_come_back_less_often_to_one_that_does_not_answer(cluster, monkeypatch):
    """A thousand of them would keep it from ever answering one."""

    def hang_up():
        with suppress(OSError):
            while True:
                server.accept()[0].close()

    with listen(cluster.host, cluster.port) as server:
        threading.Thread(target=hang_up, daemon=True).start()
        assert _pauses(cluster, monkeypatch, 5) == [20, 40, 40, 40, 40]
        server.shutdown(socket.SHUT_RDWR)


def test_rendezvous_nodes_look_often_for_one_that_is_not_there_yet(cluster, monkeypatch):
    assert len(set(_pauses(cluster, monkeypatch, 5))) == 1


def test_line_about_many_nodes_names_few():
    hosts = {node: f"gpu{node}" for node in range(1024)}
    assert format_nodes(list(range(1, 1024)), hosts).endswith("8 (gpu8) and 1015 more")
    assert format_nodes([7], hosts) == "node 7 (gpu7)"
