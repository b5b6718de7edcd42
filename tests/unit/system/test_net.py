"""Ports, with real sockets."""

import os
import socket

import pytest

from dsrun.errors import UsageError
from dsrun.system import net
from tests.ports import free_ports


@pytest.fixture
def taken():
    """A port somebody listens on, at an address other than the wildcard; those behind it stay free."""
    with socket.create_server(("127.0.0.1", free_ports(1 + net.TRIES))) as server:
        yield server.getsockname()[1]


def test_free_port_can_be_bound():
    port = net.free_port()
    assert net.port_is_free(port)
    with socket.create_server(("", port)):
        assert not net.port_is_free(port)


def test_free_port_outside_ephemeral_port_range(monkeypatch, tmp_path):
    """Else whoever connects to something, or binds to port 0, could be given it before its server has started."""
    (tmp_path / "range").write_text("20002\t60999\n")
    monkeypatch.setattr(net, "_RANGE_OF_KERNEL", tmp_path / "range")
    monkeypatch.setattr(net, "port_is_free", {20001, 20002}.__contains__)
    assert net.free_port() == 20001
    monkeypatch.setattr(net, "port_is_free", set().__contains__)
    assert net.free_port() > 0


@pytest.mark.parametrize("said", ["1024\t65535\n", "", None])
def test_free_port_without_ephemeral_port_range(said, monkeypatch, tmp_path):
    """Where the kernel leaves no port out of its range, or says nothing of one."""
    if said is not None:
        (tmp_path / "range").write_text(said)
    monkeypatch.setattr(net, "_RANGE_OF_KERNEL", tmp_path / "range")
    assert net.port_is_free(net.free_port())


def test_port_with_listener_on_one_address_is_taken(taken):
    assert not net.port_is_free(taken)
    assert not net.port_is_free(taken, "127.0.0.1")
    assert net.port_is_free(taken, "127.0.0.2")


def test_a_port_in_time_wait_is_free():
    port = free_ports()
    with socket.create_server(("127.0.0.1", port)) as server:
        client = socket.create_connection(("127.0.0.1", port))
        peer, _ = server.accept()
        peer.close()  # the server's side closes first and keeps TIME_WAIT
        client.close()
    assert net.port_is_free(port)


def test_port_at_other_host_counts_as_free(taken):
    assert net.port_is_free(taken, "192.0.2.1")


def test_next_free_port_skips_taken_ports(taken):
    following = net.next_free_port(taken)
    assert following
    assert taken < following <= taken + 10
    with socket.create_server(("", following)):
        assert net.next_free_port(taken, tries=following - taken) is None


def test_claim_a_free_port():
    port = free_ports()
    assert net.claim_port(port, find=False) == port


def test_claim_a_taken_port(taken):
    following = net.next_free_port(taken)
    with pytest.raises(UsageError) as caught:
        net.claim_port(taken, find=False)
    assert f"port {taken} is taken by" in caught.value.message
    assert f"(process {os.getpid()})" in caught.value.message
    assert f"the next free one is {following}" in caught.value.message
    assert caught.value.fix == f"--master-port {following} or --find-port"
    assert net.claim_port(taken, find=True) == following
    with pytest.raises(UsageError) as without_that_flag:
        net.claim_port(taken, find=None)
    assert without_that_flag.value.fix == f"--master-port {following}"


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_claim_invalid_port_rejected(port):
    with pytest.raises(UsageError, match="is not a valid port"):
        net.claim_port(port, find=True)


def test_no_free_port_after_last_port():
    assert net.next_free_port(65535) is None
