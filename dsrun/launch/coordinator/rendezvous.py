"""The rendezvous of the supervisors of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dsrun.launch.context import LocalLauncher
from dsrun.launch.coordinator.client import CoordinatorClient, NodeIdentity, join
from dsrun.launch.coordinator.messages import (
    RENDEZVOUS_TIMEOUT_S,
    Coordinator,
    RunInfo,
    SingleNodeCoordinator,
    shared_key,
)
from dsrun.launch.coordinator.server import CoordinatorServer
from dsrun.launch.coordinator.transport import allow_open_files, listen
from dsrun.launch.signals import StartupSignals
from dsrun.system.net import claim_port, plain_address


@contextmanager
def rendezvous(
    place: LocalLauncher,
    early: StartupSignals,
    *,
    run_info: RunInfo,
    secret: str | None,
    name: str,
    timeout_s: float = RENDEZVOUS_TIMEOUT_S,
) -> Iterator[tuple[Coordinator, RunInfo, str | None]]:
    """The coordinator, node 0's `run_info`, and this machine's address on the network of the nodes (None on one node).

    `run_info` is used on node 0 only; `name` is this machine's name in messages; `early` forwards signals that come
    before the body handles them. Raises Stopped if another node was signalled, RendezvousError if nodes are missing,
    UsageError if they were started with different settings.
    """
    coordinator: Coordinator | None = None
    try:
        if place.nodes == 1:
            coordinator = SingleNodeCoordinator()
            early.tell(coordinator)
            yield coordinator, run_info, None
            return
        key = shared_key(run=place.run, secret=secret)
        if place.node == 0:
            allow_open_files(place.nodes)
            port = claim_port(place.port or 0, find=None)
            coordinator = first = CoordinatorServer(
                listen(place.host, port + 1),
                place.nodes,
                key,
                run_info=run_info,
                timeout_s=timeout_s,
                returns=place.returns,
            )
            early.tell(coordinator)
            first.gather()
            yield first, run_info, plain_address(first.local_address)
        else:
            coordinator = other = _joined(place, key, name, timeout_s)
            early.tell(coordinator)
            other.gather()
            yield other, other.run_info, plain_address(other.local_address)
    finally:
        if coordinator is not None:
            coordinator.close()


def _joined(place: LocalLauncher, key: bytes, name: str, timeout_s: float) -> CoordinatorClient:
    identity = NodeIdentity(node=place.node, nodes=place.nodes, name=name, key=key)
    return join(place.host, (place.port or 0) + 1, identity, timeout_s=timeout_s)
