"""The rendezvous of the supervisors of a run, and the coordinator on all nodes but node 0, which it follows."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from dsrun import __version__
from dsrun.errors import UsageError
from dsrun.launch.context import LocalLauncher
from dsrun.launch.coordinator.messages import (
    RENDEZVOUS_TIMEOUT_S,
    Coordinator,
    Decide,
    NodeResult,
    RendezvousError,
    RunInfo,
    SingleNodeCoordinator,
    Stopped,
    decide_without_server,
    decision_from_dict,
    shared_key,
)
from dsrun.launch.coordinator.server import CoordinatorServer
from dsrun.launch.coordinator.transport import (
    PEER_TIMEOUT_S,
    Connection,
    EventLoop,
    Message,
    allow_open_files,
    challenge,
    digests_match,
    hmac_digest,
    listen,
)
from dsrun.launch.signals import StartupSignals
from dsrun.launch.supervisor.policy import Decision
from dsrun.runs.stop_request import StopRequest
from dsrun.system.net import claim_port, plain_address

_CONNECT_S = 5.0
_AGAIN_S = 0.3


class CoordinatorClient(EventLoop):
    """The coordinator of node `node`, over a connection that node 0 has accepted."""

    def __init__(self, connection: Connection, node: int, nodes: int, *, host: str, run_info: RunInfo) -> None:
        super().__init__()
        self.node = node
        self.nodes = nodes
        self.attempt = 0
        self.run_info = run_info
        self._connection = connection
        self._host = host
        self._began = False
        self._abort = False
        self._left = False
        self._departed = False
        self._asked: StopRequest | None = None
        self._announced: StopRequest | None = None
        self._decision: Decision | None = None
        self.watch(connection)
        self.begin()

    @property
    def local_address(self) -> str:
        """This machine's address on the connection to node 0."""
        return str(self._connection.sock.getsockname()[0])

    def gather(self) -> None:
        """Wait until node 0 starts the first attempt.

        Raises RendezvousError if node 0 disconnects, and Stopped if any node was asked to stop.
        """
        with self.changed:
            while not self._began:
                if self.stop_requested():
                    raise Stopped(f"{self.stop_requested()} came before the run started: the same command starts it")
                if self._left:
                    raise RendezvousError(
                        f"rendezvous: the first node ({self._host}) disconnected before all nodes had joined",
                        fix="see its log",
                    )
                self.changed.wait(0.2)

    def check(self) -> bool:
        return self._abort or self._left

    def announce_stop(self, request: StopRequest) -> None:
        if self._announced is None:
            self._announced = request
            self.post(self._connection, {"stop": asdict(request)})

    def stop_requested(self) -> StopRequest | None:
        return self._asked or self._announced

    def report_and_wait(self, ended: NodeResult, decide: Decide) -> Decision:
        self.post(self._connection, {"ended": asdict(ended)})
        with self.changed:
            while self._decision is None and not self._left:
                self.changed.wait(0.2)
            decision, self._decision = self._decision, None
        return decision or decide_without_server(self._host, ended_by_signal=self._departed)

    def close(self) -> None:
        self.post(self._connection, {"bye": True})
        self.end()

    # callbacks of the thread

    def on_message(self, connection: Connection, message: Message) -> None:
        with self.changed:
            if "begin" in message:
                self.attempt = int(message["begin"])
                self._began = True
            elif "abort" in message:
                self._abort = True
            elif "stop" in message:
                self._asked = StopRequest.from_dict(message["stop"])
            elif "decision" in message:
                try:
                    self._decision = decision_from_dict(message["decision"])
                except (TypeError, KeyError, ValueError) as error:
                    raise ConnectionError(str(error)) from None
                # Reset here: the next message may already be the next attempt's failure.
                self._abort = False
            elif "bye" in message:
                self._left = self._departed = True
            self.changed.notify_all()

    def on_disconnect(self, connection: Connection) -> None:
        with self.changed:
            self._left = True
            self.changed.notify_all()

    def on_timer(self) -> None:
        if time.monotonic() - self._connection.last_received > PEER_TIMEOUT_S:
            self.drop(self._connection)
            self.on_disconnect(self._connection)
        else:
            self.post(self._connection, {"alive": True})


@dataclass(frozen=True, kw_only=True)
class NodeIdentity:
    """The node that joins: `node` of `nodes`, called `name` in messages, with the run's key."""

    node: int
    nodes: int
    name: str
    key: bytes


def join(host: str, port: int, identity: NodeIdentity, *, timeout_s: float = RENDEZVOUS_TIMEOUT_S) -> CoordinatorClient:
    """Connect to node 0 on `host`, which may start later than this node.

    Raises RendezvousError if node 0 cannot be reached within `timeout_s` seconds, UsageError if it rejects this node.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return _joined(host, port, identity)
        except (OSError, ValueError) as error:
            if time.monotonic() >= deadline:
                raise RendezvousError(
                    f"rendezvous: node {identity.node} could not reach the first node at {host}:{port} "
                    f"within {timeout_s:.0f} s: {error}",
                    fix="is `dsrun launch` running there, and does a firewall let the port through?",
                ) from None
            time.sleep(min(_AGAIN_S, timeout_s))


def _joined(host: str, port: int, identity: NodeIdentity) -> CoordinatorClient:
    # Tries all addresses of the host name, IPv6 and IPv4.
    connection = Connection(socket.create_connection((host, port), timeout=_CONNECT_S))
    try:
        number = challenge()
        question = _first(connection, [])
        rest: list[Message] = []
        connection.send(
            {
                "node": identity.node,
                "nodes": identity.nodes,
                "host": identity.name,
                "version": __version__,
                "challenge": number,
                "proof": hmac_digest(
                    identity.key, "follower", question.get("challenge"), identity.node, identity.nodes
                ),
            }
        )
        answer = _first(connection, rest)
        if "refused" in answer:
            raise UsageError(
                f"{host}:{port} refuses node {identity.node} of {identity.nodes}: {answer['refused']}",
                fix="all nodes need the same --nodes, --master-addr, --master-port and DSRUN_SECRET",
            )
        if not digests_match(answer.get("proof"), hmac_digest(identity.key, "leader", number)):
            raise ConnectionError("the server there is not node 0 of this run")
    except BaseException:
        connection.close()
        raise
    follower = CoordinatorClient(
        connection, identity.node, identity.nodes, host=host, run_info=dict(answer.get("welcome") or {})
    )
    for message in rest:
        follower.on_message(connection, message)
    return follower


def _first(connection: Connection, rest: list[Message]) -> Message:
    """The next message; further ones received with it go into `rest`."""
    deadline = time.monotonic() + _CONNECT_S
    while time.monotonic() < deadline:
        messages = connection.receive()
        if messages:
            rest += messages[1:]
            return messages[0]
    raise TimeoutError("no answer from a supervisor")


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
            early.forward_to(coordinator)
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
            early.forward_to(coordinator)
            first.gather()
            yield first, run_info, plain_address(first.local_address)
        else:
            identity = NodeIdentity(node=place.node, nodes=place.nodes, name=name, key=key)
            coordinator = other = join(place.host, (place.port or 0) + 1, identity, timeout_s=timeout_s)
            early.forward_to(coordinator)
            other.gather()
            yield other, other.run_info, plain_address(other.local_address)
    finally:
        if coordinator is not None:
            coordinator.close()
