"""Which supervisors may join: those with the run's key and the same dsrun version, on a node that is not taken."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from dsrun import __version__
from dsrun.launch.coordinator.transport import Connection, Message, challenge, digests_match, hmac_digest

HANDSHAKE_TIMEOUT_S = 10.0
"""Seconds in which a new connection must authenticate."""

# A second supervisor for a node is rejected if the first was heard from within this time; later it replaces it.
_REPLACE_AFTER_S = 3.0


@dataclass
class PendingConnection:
    """A connection that has not authenticated yet; `since` is CLOCK_MONOTONIC in seconds."""

    connection: Connection
    challenge: str = field(default_factory=challenge)
    since: float = field(default_factory=time.monotonic)


@dataclass
class Peer:
    """The supervisor of another node. `waiting` until it takes part in an attempt."""

    node: int
    host: str
    connection: Connection
    waiting: bool = True


def reject_reason(
    pending: PendingConnection, message: Message, *, key: bytes, nodes: int, peers: Mapping[int, Peer]
) -> str | None:
    """Why the supervisor that sent `message` cannot join a run on `nodes` machines; None if it can.

    A sender without the key learns only that it does not have it.
    """
    node, their_nodes, version = (message.get(name) for name in ("node", "nodes", "version"))
    expected = hmac_digest(key, "follower", pending.challenge, node, their_nodes)
    if not digests_match(message.get("proof"), expected):
        return "it belongs to another run, or has another DSRUN_SECRET"
    if their_nodes != nodes:
        return f"it was started for {their_nodes} nodes, the first one for {nodes}"
    if not isinstance(node, int) or not 1 <= node < nodes:
        return f"node {node} is out of range"
    if version != __version__:
        return f"it has dsrun {version}, the first node {__version__}"
    current = peers.get(node)
    if current and time.monotonic() - current.connection.last_received < _REPLACE_AFTER_S:
        return f"{current.host} is node {node} already"
    return None
