"""The rendezvous of the supervisors of a run, and the coordinator on all nodes but node 0, which it follows."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

from dsrun import __version__
from dsrun.errors import UsageError
from dsrun.launch.context import LocalLauncher
from dsrun.launch.coordinator.messages import (
    DECISION_S,
    EVIDENCE_TIMEOUT_S,
    RENDEZVOUS_TIMEOUT_S,
    STRAGGLER_TIMEOUT_S,
    Coordinator,
    DecideNext,
    NodeResult,
    RendezvousError,
    RunInfo,
    StoppedBeforeStart,
    decide_without_server,
    decision_from_dict,
    shared_key,
)
from dsrun.launch.coordinator.server import CoordinatorServer
from dsrun.launch.coordinator.transport import (
    PEER_TIMEOUT_S,
    EventLoop,
    PeerConnection,
    PeerMessage,
    allow_open_files,
    digests_match,
    hmac_digest,
    listen,
)
from dsrun.launch.signals import StartupSignals
from dsrun.launch.supervisor.policy import RunDecision
from dsrun.runs.stop_request import StopRequest
from dsrun.system.net import claim_port

_CONNECT_S = 5.0
_RETRY_S = 0.3


class FirstNodeLeft(RendezvousError):
    """Node 0 has gone before all nodes had joined."""


class CoordinatorClient(Coordinator, EventLoop):
    """The coordinator of the node at `place`, over a connection that node 0 has accepted."""

    def __init__(self, connection: PeerConnection, place: LocalLauncher, *, run_info: RunInfo) -> None:
        Coordinator.__init__(self, run_info)
        EventLoop.__init__(self)
        self.node = place.node
        self._connection = connection
        self._host = place.host
        self._recreated = place.recreated
        self._began = False
        self._abort = False
        self._hang_elsewhere = False
        self._evidence_complete = False
        self._left = False
        self._departed = False
        self._decision: RunDecision | None = None
        self.return_timeout_s = RENDEZVOUS_TIMEOUT_S
        """Seconds that node 0 waits for a lost node."""
        self.watch(connection)
        self.begin()

    @property
    def local_address(self) -> str:  # type: ignore[override]
        return self._connection.local_address

    def gather(self) -> None:
        with self.changed:
            # A signal handler that notes a request wakes nobody, so this looks for one.
            while not self._began:
                if request := self.stop_requested():
                    raise StoppedBeforeStart(request)
                if self._left:
                    raise FirstNodeLeft(
                        f"rendezvous: the first node ({self._host}) disconnected before all nodes had joined",
                        fix="see its log",
                    )
                self.changed.wait(0.2)

    def check(self) -> bool:
        return self._abort or self._hang_elsewhere or self._left

    def hang_elsewhere(self) -> bool:
        return self._hang_elsewhere

    def share_evidence(self, give_up: Callable[[], bool]) -> None:
        self.post(self._connection, {"evidence": True})
        self.wait_until(lambda: self._evidence_complete or self._left or give_up(), EVIDENCE_TIMEOUT_S)

    def announce_stop(self, request: StopRequest) -> None:
        if self._announced is None:
            self._announced = request
            self.post(self._connection, {"stop": asdict(request)})

    def report_and_wait(self, ended: NodeResult, decide: DecideNext) -> RunDecision:
        self.post(self._connection, {"ended": asdict(ended)})
        limit_s = STRAGGLER_TIMEOUT_S + self.return_timeout_s + DECISION_S
        failed_at: float | None = None
        with self.changed:
            while self._decision is None and not self._left:
                self.changed.wait(0.2)
                # Until a node has failed the others train, under the watchdogs of their supervisors.
                if failed_at is None and (self._abort or not ended.ok):
                    failed_at = time.monotonic()
                if failed_at is not None and time.monotonic() - failed_at > limit_s:
                    break  # the process there lives, and what decides in it waits for a file server
            decision, self._decision = self._decision, None
        return decision or decide_without_server(self._host, ended_by_signal=self._departed, recreated=self._recreated)

    def close(self) -> None:
        self.post(self._connection, {"bye": True})
        self.end()

    # callbacks of the thread

    def on_message(self, connection: PeerConnection, message: PeerMessage) -> None:
        with self.changed:
            if "begin" in message:
                self.attempt = int(message["begin"])
                self._began = True
            elif "abort" in message:
                self._abort = True
            elif "hang" in message:
                self._hang_elsewhere = True
            elif "evidence" in message:
                self._evidence_complete = True
            elif "stop" in message:
                self._received = StopRequest.from_dict(message["stop"])
            elif "decision" in message:
                try:
                    self._decision = decision_from_dict(message["decision"])
                except (TypeError, KeyError, ValueError) as error:
                    raise ConnectionError(str(error)) from None
                # Reset here: the next message may already be the next attempt's failure.
                self._abort = self._hang_elsewhere = self._evidence_complete = False
            elif "bye" in message:
                self._left = self._departed = True
            self.changed.notify_all()

    def on_disconnect(self, connection: PeerConnection) -> None:
        with self.changed:
            self._left = True
            self.changed.notify_all()

    def on_timer(self) -> None:
        if time.monotonic() - self._connection.last_received > PEER_TIMEOUT_S:
            self.drop(self._connection)
            self.on_disconnect(self._connection)
        else:
            self.post(self._connection, {"alive": True})


def join(place: LocalLauncher, *, name: str, key: bytes, timeout_s: float = RENDEZVOUS_TIMEOUT_S) -> CoordinatorClient:
    """Connect to node 0, which may start later than this node; `name` is what messages call this machine.

    Raises RendezvousError if node 0 cannot be reached within `timeout_s` seconds, UsageError if it rejects this node.
    """
    port = (place.port or 0) + 1
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return _joined(place, port, name, key)
        except (OSError, ValueError) as error:
            if time.monotonic() >= deadline:
                raise RendezvousError(
                    f"rendezvous: node {place.node} could not reach the first node at {place.host}:{port} "
                    f"within {timeout_s:.0f} s: {error}",
                    fix="is `dsrun launch` running there, and does a firewall let the port through?",
                ) from None
            time.sleep(min(_RETRY_S, timeout_s))


def _joined(place: LocalLauncher, port: int, name: str, key: bytes) -> CoordinatorClient:
    # Tries all addresses of the host name, IPv6 and IPv4.
    connection = PeerConnection(socket.create_connection((place.host, port), timeout=_CONNECT_S))
    try:
        # Both sides prove that they have the key: whoever listens on that port instead cannot pass for node 0.
        own_challenge = secrets.token_hex(16)
        challenge = _first(connection, []).get("challenge")
        rest: list[PeerMessage] = []
        own = {"node": place.node, "nodes": place.nodes, "host": name, "version": __version__}
        proof = hmac_digest(key, "follower", challenge, place.node, place.nodes)
        connection.send({**own, "challenge": own_challenge, "proof": proof})
        answer = _first(connection, rest)
        if "refused" in answer:
            if place.recreated and answer.get("for_now"):
                raise ConnectionError(str(answer["refused"]))
            raise UsageError(
                f"{place.host}:{port} refuses node {place.node} of {place.nodes}: {answer['refused']}",
                fix="all nodes need the same --nodes, --master-addr, --master-port and DSRUN_SECRET",
            )
        if not digests_match(answer.get("proof"), hmac_digest(key, "leader", own_challenge)):
            raise ConnectionError("the server there is not node 0 of this run")
    except BaseException:
        connection.close()
        raise
    client = CoordinatorClient(connection, place, run_info=dict(answer.get("welcome") or {}))
    for message in rest:
        client.on_message(connection, message)
    return client


def _first(connection: PeerConnection, rest: list[PeerMessage]) -> PeerMessage:
    """The next message; further ones received with it go into `rest`."""
    deadline = time.monotonic() + _CONNECT_S
    while time.monotonic() < deadline:
        messages = connection.receive()
        if messages:
            rest += messages[1:]
            return messages[0]
    raise TimeoutError("no answer from a supervisor")


def _joined_and_gathered(
    place: LocalLauncher, early: StartupSignals, *, name: str, key: bytes, timeout_s: float
) -> CoordinatorClient:
    """The coordinator of another node than 0, once all have joined."""
    deadline = time.monotonic() + timeout_s
    while True:
        client = join(place, name=name, key=key, timeout_s=max(0.0, deadline - time.monotonic()))
        early.forward_to(client)
        try:
            client.gather()
            return client
        except FirstNodeLeft:
            client.close()
            # Created again before all nodes of the last start were gone, this one has met the first of those.
            if not place.recreated or time.monotonic() >= deadline:
                raise
        except BaseException:
            client.close()
            raise


@contextmanager
def rendezvous(
    place: LocalLauncher,
    early: StartupSignals,
    *,
    run_info: RunInfo,
    secret: str | None,
    name: str,
    timeout_s: float = RENDEZVOUS_TIMEOUT_S,
) -> Iterator[Coordinator]:
    """The coordinator, once all nodes have joined.

    `run_info` is used on node 0 only; `name` is this machine's name in messages; `early` forwards signals that come
    before the body handles them. Raises StoppedBeforeStart if another node was signalled, RendezvousError if nodes are
    missing, UsageError if they were started with different settings.
    """
    coordinator: Coordinator | None = None
    try:
        key = shared_key(run=place.run, secret=secret)
        if place.nodes == 1:
            coordinator = Coordinator(run_info)
            early.forward_to(coordinator)
        elif place.node == 0:
            allow_open_files(place.nodes)
            listener = listen(place.host, claim_port(place.port or 0, find=None) + 1)
            coordinator = CoordinatorServer(
                listener, place.nodes, key,
                run_info=run_info, timeout_s=timeout_s, returns=place.returns, recreated=place.recreated,
            )  # fmt: skip
            early.forward_to(coordinator)
            coordinator.gather()
        else:
            coordinator = _joined_and_gathered(place, early, name=name, key=key, timeout_s=timeout_s)
            coordinator.return_timeout_s = timeout_s
        yield coordinator
    finally:
        if coordinator is not None:
            coordinator.close()
