"""The rendezvous of the supervisors of a run."""

import random
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from dsrun import __version__
from dsrun.errors import UsageError
from dsrun.launch.context import LocalLauncher
from dsrun.launch.coordinator import messages, transport
from dsrun.launch.coordinator.client import CoordinatorClient, FirstNodeLeft
from dsrun.launch.coordinator.server import CoordinatorServer
from dsrun.launch.signals import StartupSignals
from dsrun.system.net import claim_port
from dsrun.system.terminal.stderr import print_note

_CONNECT_S = 5.0
_RETRY_S = 0.3
_HANDSHAKE_S, _LONGEST_HANDSHAKE_S = 10.0, 40.0


class _AnotherRun(UsageError):
    """Whoever listens there does not know the key of this run."""


class _NoAnswer(ConnectionError):
    """Somebody listens there, and does not answer, or hangs up."""


def join(
    place: LocalLauncher,
    *,
    name: str,
    key: bytes,
    timeout_s: float = messages.RENDEZVOUS_TIMEOUT_S,
    notify: Callable[[str], None] = print_note,
) -> CoordinatorClient:
    """Connect to node 0, which may start later than this node; `name` is what messages call this machine, and `notify`
    is told now and then what is waited for.

    Raises RendezvousError if node 0 cannot be reached within `timeout_s` seconds, UsageError if it rejects this node.
    """
    began = time.monotonic()
    told = began + messages.TELL_S
    why: dict[int, str] = {}
    handshake_s = _HANDSHAKE_S
    while True:
        pause = _RETRY_S
        for port in place.coordinator_ports:
            try:
                return _joined(place, port, name, key, handshake_s)
            except _NoAnswer as error:
                # A node 0 that has more to do than it can would have ever more if all nodes came again at once.
                why[port] = str(error)
                handshake_s = min(2 * handshake_s, _LONGEST_HANDSHAKE_S)
                pause = random.uniform(_RETRY_S, handshake_s)
            except (OSError, TypeError, KeyError, ValueError) as error:
                why[port] = str(error)
            except _AnotherRun as error:
                if not place.chosen_port:
                    raise
                why[port] = str(error)
        now = time.monotonic()
        if now - began >= timeout_s:
            raise messages.RendezvousError(
                f"rendezvous: node {place.node} could not reach the first node at {place.host} "
                f"within {timeout_s:.0f} s: {_reasons(why)}",
                fix="is `dsrun launch` running there, and does a firewall let the port through?",
            ) from None
        if now >= told:
            told = now + messages.TELL_AGAIN_S
            left = timeout_s - (now - began)
            notify(f"waiting for node 0 at {place.host}, for {left:.0f} s more: {_reasons(why)}")
        time.sleep(min(pause, timeout_s))


def _reasons(why: Mapping[int, str]) -> str:
    """ "port 29501: Connection refused", the same reason of several ports once."""
    ports: dict[str, list[int]] = {}
    for port, reason in why.items():
        ports.setdefault(reason, []).append(port)
    return "; ".join(
        f"port{'s' if len(of) > 1 else ''} {', '.join(map(str, of))}: {each}" for each, of in ports.items()
    )


def _joined(place: LocalLauncher, port: int, name: str, key: bytes, handshake_s: float) -> CoordinatorClient:
    # Tries all addresses of the host name, IPv6 and IPv4.
    connection = transport.PeerConnection(socket.create_connection((place.host, port), timeout=_CONNECT_S))
    deadline = time.monotonic() + handshake_s
    try:
        # Both sides prove that they have the key: whoever listens on that port instead cannot pass for node 0.
        own_challenge = secrets.token_hex(16)
        challenge = _first(connection, [], deadline).get("challenge")
        rest: list[transport.PeerMessage] = []
        own = {"node": place.node, "nodes": place.nodes, "workers": place.workers, "host": name, "version": __version__}
        proof = transport.hmac_digest(key, "follower", challenge, place.node, place.nodes)
        connection.send({**own, "challenge": own_challenge, "proof": proof})
        answer = _first(connection, rest, deadline)
        if "refused" in answer:
            if place.recreated and answer.get("for_now"):
                raise ConnectionError(str(answer["refused"]))
            refused = UsageError if answer.get("ours") else _AnotherRun
            what = f"{place.host}:{port} refuses node {place.node} of {place.nodes}: {answer['refused']}"
            raise refused(
                what, fix="all nodes need the same dsrun, --nodes, --master-addr, --master-port and DSRUN_SECRET"
            )
        if not transport.digests_match(answer.get("proof"), transport.hmac_digest(key, "leader", own_challenge)):
            raise ConnectionError("the server there is not node 0 of this run")
    except BaseException:
        connection.close()
        raise
    client = CoordinatorClient(connection, place, run_info=dict(answer.get("welcome") or {}))
    for message in rest:
        client.on_message(connection, message)
    if answer.get("begun"):
        print_note(f"node {place.node}: the run has begun, and takes this node in when its ranks can start at once")
        client.is_late = True
    return client


def _first(
    connection: transport.PeerConnection, rest: list[transport.PeerMessage], deadline: float
) -> transport.PeerMessage:
    """The next message; further ones received with it go into `rest`. Raises _NoAnswer if none comes in time."""
    while time.monotonic() < deadline:
        try:
            received = connection.receive()
        except TimeoutError:  # of the socket
            continue
        except ConnectionError as error:
            raise _NoAnswer(str(error)) from error
        if received:
            rest += received[1:]
            return received[0]
    raise _NoAnswer("no answer from a supervisor")


def _joined_and_gathered(
    place: LocalLauncher, early: StartupSignals, *, name: str, key: bytes, timeout_s: float
) -> CoordinatorClient:
    """The coordinator of another node than 0, once all have joined."""
    deadline = time.monotonic() + timeout_s
    while True:
        client = join(place, name=name, key=key, timeout_s=max(0.0, deadline - time.monotonic()))
        early.forward_to(client)
        try:
            if not client.is_late:
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


def _listen(place: LocalLauncher) -> tuple[int, socket.socket]:
    """The port for the ranks, and a socket for the supervisors. Raises UsageError where those of `place` are taken."""
    port = claim_port(place.port or 0, find=place.chosen_port or None)
    if port != place.port:
        print_note(f"port {place.port} is taken: the ranks meet at port {port}")
    *others, last = (each for each in place.coordinator_ports if each != port)
    for candidate in others:
        with suppress(UsageError):
            return port, transport.listen(place.host, candidate)
    return port, transport.listen(place.host, last)


@contextmanager
def rendezvous(
    place: LocalLauncher,
    early: StartupSignals,
    *,
    run_info: messages.RunInfo,
    secret: str | None,
    name: str,
    timeout_s: float = messages.RENDEZVOUS_TIMEOUT_S,
    least: int | None = None,
) -> Iterator[messages.Coordinator]:
    """The coordinator, once all nodes have joined.

    `run_info` is used on node 0 only; `name` is this machine's name in messages; `early` forwards signals that come
    before the body handles them; `least` nodes are enough to go on. Raises StoppedBeforeStart if another node was
    signalled, RendezvousError if nodes are missing, UsageError if they were started with different settings."""
    coordinator: messages.Coordinator | None = None
    try:
        key = messages.shared_key(run=place.run, secret=secret)
        if place.nodes == 1:
            coordinator = messages.Coordinator(run_info)
            early.forward_to(coordinator)
        elif place.node == 0:
            transport.allow_open_files(place.nodes)
            port, listener = _listen(place)
            coordinator = CoordinatorServer(
                listener, place.nodes, key,
                run_info={**run_info, messages.PORT: str(port)}, timeout_s=timeout_s,
                returns=place.returns, recreated=place.recreated, least=least, workers=place.workers,
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
