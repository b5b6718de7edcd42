"""Bringing the supervisors of a run together, and ending in good order when a signal comes before they are."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from dsrun.launch.context import Here
from dsrun.launch.council import GATHER_S, Alone, Council, Facts, Stopped, shared_key
from dsrun.launch.follower import Follower, Seat, join
from dsrun.launch.leader import Leader
from dsrun.launch.wire import listen
from dsrun.system.interfaces import plain_address
from dsrun.system.net import claim_port

HEEDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


class _Signalled(Exception):
    """A signal came to this supervisor; its name is the argument."""


@contextmanager
def convened(
    place: Here, *, facts: Facts, secret: str | None, name: str, patience_s: float = GATHER_S
) -> Iterator[tuple[Council, Facts, str | None]]:
    """The council of all nodes, the first node's facts, and the address of this machine on the way to the others.

    `facts` count on the first node, `name` is what this machine is called in messages, the times are seconds. Until
    the body heeds signals itself, one of them ends it, and the run everywhere. Raises Stopped then; RendezvousError
    when the nodes do not come together, UsageError when they do not fit together.
    """
    council: Council | None = None
    try:
        with _raised():
            if place.nodes == 1:
                council = Alone()
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
                first.gather()
                yield first, facts, plain_address(first.local_address)
            else:
                council = other = _joined(place, key, name, patience_s)
                other.gather()
                yield other, other.facts, plain_address(other.local_address)
    except _Signalled as signalled:
        if council is not None:
            council.announce_stop(str(signalled))
        raise Stopped(f"{signalled} came before the run began: the same command starts it") from None
    finally:
        if council is not None:
            council.close()


def _joined(place: Here, key: bytes, name: str, patience_s: float) -> Follower:
    seat = Seat(node=place.node, nodes=place.nodes, name=name, key=key)
    return join(place.host, (place.port or 0) + 1, seat, patience_s=patience_s)


@contextmanager
def _raised() -> Iterator[None]:
    """A signal raises _Signalled in here. One that is ignored stays so (nohup)."""
    heeded = [signum for signum in HEEDED if signal.getsignal(signum) is not signal.SIG_IGN]
    before = {signum: signal.signal(signum, _raise) for signum in heeded}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _raise(signum: int, _frame: FrameType | None) -> NoReturn:
    raise _Signalled(signal.Signals(signum).name)
