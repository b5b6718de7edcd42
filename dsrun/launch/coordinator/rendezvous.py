"""Bringing the supervisors of a run together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dsrun.launch.context import Here
from dsrun.launch.coordinator.client import Follower, Seat, join
from dsrun.launch.coordinator.messages import GATHER_S, Alone, Council, Facts, shared_key
from dsrun.launch.coordinator.server import Leader
from dsrun.launch.coordinator.transport import listen
from dsrun.launch.signals import Early
from dsrun.system.interfaces import plain_address
from dsrun.system.net import claim_port


@contextmanager
def convened(
    place: Here, early: Early, *, facts: Facts, secret: str | None, name: str, patience_s: float = GATHER_S
) -> Iterator[tuple[Council, Facts, str | None]]:
    """The council of all nodes, the first node's facts, and the address of this machine on the way to the others.

    `facts` count on the first node, `name` is what this machine is called in messages, the times are seconds, and
    `early` passes on to all nodes what signals come before the body heeds them itself. Raises Stopped when one came to
    another node; RendezvousError when the nodes do not come together, UsageError when they do not fit together.
    """
    council: Council | None = None
    try:
        if place.nodes == 1:
            council = Alone()
            early.tell(council)
            yield council, facts, None
            return
        key = shared_key(run=place.run, secret=secret)
        if place.node == 0:
            port = claim_port(place.port or 0, find=None)
            council = first = Leader(
                listen(place.host, port + 1),
                place.nodes,
                key,
                facts=facts,
                patience_s=patience_s,
                returns=place.returns,
            )
            early.tell(council)
            first.gather()
            yield first, facts, plain_address(first.local_address)
        else:
            council = other = _joined(place, key, name, patience_s)
            early.tell(council)
            other.gather()
            yield other, other.facts, plain_address(other.local_address)
    finally:
        if council is not None:
            council.close()


def _joined(place: Here, key: bytes, name: str, patience_s: float) -> Follower:
    seat = Seat(node=place.node, nodes=place.nodes, name=name, key=key)
    return join(place.host, (place.port or 0) + 1, seat, patience_s=patience_s)
