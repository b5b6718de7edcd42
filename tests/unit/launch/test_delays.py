"""A busy machine is not taken for a lost one."""

from __future__ import annotations

import socket

import pytest

from dsrun.launch.coordinator import transport
from dsrun.launch.coordinator.transport import (
    LONGEST_TIMEOUT_S,
    PEER_TIMEOUT_S,
    EventLoop,
    PeerConnection,
    RecentDelays,
)


def test_longest_delay_of_the_last_minutes() -> None:
    delays = RecentDelays()
    assert delays.longest(0.0) == 0.0
    for now, seconds in ((0.0, 9.0), (100.0, 4.0), (200.0, 5.0), (300.0, 1.0)):
        delays.add(now, seconds)
    assert [delays.longest(now) for now in (300.0, 601.0, 801.0, 901.0)] == [9.0, 5.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("of_peer", "own", "silent_s", "lost"),
    [
        (1.0, 1.0, PEER_TIMEOUT_S - 1, False),
        (1.0, 1.0, PEER_TIMEOUT_S + 1, True),
        (6.0, 1.0, 29, False),
        (6.0, 1.0, 31, True),
        (1.0, 6.0, 29, False),  # this process did not get the processor to read what had come
        (1.0, 6.0, 31, True),
        (999.0, 1.0, LONGEST_TIMEOUT_S + 1, True),
    ],
)
def test_limit_follows_the_measured_delays(
    monkeypatch: pytest.MonkeyPatch, of_peer: float, own: float, silent_s: float, lost: bool
) -> None:
    here, there = socket.socketpair()
    with here, there:
        loop, peer = EventLoop(), PeerConnection(here)
        now = peer.last_received
        peer.delays.add(now, of_peer)
        loop._delays.add(now, own)
        monkeypatch.setattr(transport.time, "monotonic", lambda: now + silent_s)
        assert loop.is_lost(peer, PEER_TIMEOUT_S) is lost
