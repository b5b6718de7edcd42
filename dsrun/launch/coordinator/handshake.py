"""Whom the first node lets take part: those with the run's key and the same dsrun, for a place that nobody has."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from dsrun import __version__
from dsrun.launch.coordinator.transport import Message, Wire, challenge, is_proof, proof

PATIENCE_S = 10.0
"""Seconds that a connection has to show that it belongs to the run."""

# A second supervisor for a node whose first was heard within this time is a mistake, later it is its successor.
_PRESENT_S = 3.0


@dataclass
class Guest:
    """A connection that has not shown yet that it has the key; `since` is by CLOCK_MONOTONIC, in seconds."""

    wire: Wire
    number: str = field(default_factory=challenge)
    since: float = field(default_factory=time.monotonic)


@dataclass
class Member:
    """A node's supervisor. `waiting` until an attempt begins that it takes part in."""

    node: int
    host: str
    wire: Wire
    waiting: bool = True


def refusal(
    guest: Guest, message: Message, *, key: bytes, nodes: int, members: Mapping[int, Member]
) -> str | None:
    """Why the supervisor that sent `message` cannot take part in a run on `nodes` machines; None where it can.

    Whoever has not shown the key learns nothing but that.
    """
    node, said, version = (message.get(name) for name in ("node", "nodes", "version"))
    if not is_proof(message.get("proof"), proof(key, "follower", guest.number, node, said)):
        return "it belongs to another run, or has another DSRUN_SECRET"
    if said != nodes:
        return f"it was started for {said} nodes, the first one for {nodes}"
    if not isinstance(node, int) or not 1 <= node < nodes:
        return f"there is no node {node} to be"
    if version != __version__:
        return f"it has dsrun {version}, the first node {__version__}"
    there = members.get(node)
    if there and time.monotonic() - there.wire.heard < _PRESENT_S:
        return f"{there.host} is node {node} already"
    return None
