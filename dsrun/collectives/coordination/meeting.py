"""How the doctor's processes of all nodes talk: one leads, and all, the leader's own too, are members that follow.

JSON lines over the port after the rendezvous port, as between the supervisors of a run (`dsrun.launch.coordinator`),
and with the same key. A member whose version of dsrun differs is not refused: that is one of the findings."""

import secrets
import socket
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from dsrun.launch.coordinator.transport import EventLoop, PeerConnection, PeerMessage, digests_match, hmac_digest

CONNECT_S = 5.0
"""Seconds for one connection; a firewall that drops packets answers never."""
UNREACHABLE_S = 10.0
"""Seconds after which a node that cannot be reached at all is given up; one that refuses may not listen yet."""
SILENCE_S = 30.0
"""Seconds without a word after which the leader's machine counts as lost."""
_RETRY_S = 0.3
_CLOCK_ROUNDS = 3


class LeaderUnreachable(Exception):
    """This member cannot reach the leader; its text is the system's reason."""


class LeaderConnections(EventLoop):
    """The leader's connections. `events` has (member, message) in the order of arrival, None for a member that left."""

    def __init__(self, listener: socket.socket, count: int, key: bytes) -> None:
        super().__init__(listener)
        self.events: SimpleQueue[tuple[int, PeerMessage | None]] = SimpleQueue()
        self._count = count
        self._key = key
        self._challenges: dict[PeerConnection, str] = {}
        self._members: dict[PeerConnection, int] = {}
        self.begin()

    def send(self, member: int, message: PeerMessage) -> None:
        """Send to one member, if it is still there."""
        for connection, index in list(self._members.items()):
            if index == member:
                self.post(connection, message)

    def send_all(self, message: PeerMessage) -> None:
        for connection in list(self._members):
            self.post(connection, message)

    def next(self, deadline: float) -> tuple[int, PeerMessage | None] | None:
        """The next event, None at the deadline (CLOCK_MONOTONIC)."""
        try:
            return self.events.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            return None

    # callbacks of the thread

    def on_connect(self, connection: PeerConnection) -> None:
        self._challenges[connection] = secrets.token_hex(16)
        self.post(connection, {"challenge": self._challenges[connection]})

    def on_message(self, connection: PeerConnection, message: PeerMessage) -> None:
        if "clock" in message:
            self.post(connection, {"clock": time.time()})
        elif connection in self._members:
            self.events.put((self._members[connection], message))
        elif reason := self._reject_reason(connection, message):
            self.post(connection, {"refused": reason})
            self.dismiss(connection)
        else:
            self._members[connection] = message["index"]
            self.events.put((message["index"], message))

    def _reject_reason(self, connection: PeerConnection, message: PeerMessage) -> str | None:
        index, count = message.get("index"), message.get("count")
        expected = hmac_digest(self._key, "doctor", self._challenges[connection], index, count)
        if not digests_match(message.get("proof"), expected):
            return "it belongs to another test, or has another DSRUN_SECRET"
        if count != self._count:
            return f"it was started for {count} nodes, the first one for {self._count}"
        if not isinstance(index, int) or not 0 <= index < self._count:
            return f"node {index} is out of range"
        return f"there is a node {index} already" if index in self._members.values() else None

    def on_disconnect(self, connection: PeerConnection) -> None:
        self._challenges.pop(connection, None)
        index = self._members.pop(connection, None)
        if index is not None:
            self.events.put((index, None))

    def on_timer(self) -> None:
        self.send_all({"alive": True})


class MemberConnection(EventLoop):
    """A member's connection to the leader. `inbox` has the leader's messages, None once it has left."""

    def __init__(self, connection: PeerConnection) -> None:
        super().__init__()
        self.inbox: SimpleQueue[PeerMessage | None] = SimpleQueue()
        self._connection = connection
        self.watch(connection)
        self.begin()

    @property
    def local_address(self) -> str:
        """This machine's address on the way to the leader."""
        return self._connection.local_address

    def send(self, message: PeerMessage) -> None:
        self.post(self._connection, message)

    def next(self) -> PeerMessage | None:
        """The leader's next message; None when it has left or its machine no longer answers."""
        return self.inbox.get()

    def on_message(self, connection: PeerConnection, message: PeerMessage) -> None:
        if "alive" not in message:
            self.inbox.put(message)

    def on_disconnect(self, connection: PeerConnection) -> None:
        self.inbox.put(None)

    def on_timer(self) -> None:
        if time.monotonic() - self._connection.last_received > SILENCE_S:
            self.drop(self._connection)
            self.inbox.put(None)


def join(
    host: str,
    port: int,
    key: bytes,
    hello: Callable[[str, float], PeerMessage],
    *,
    timeout_s: float,
    notify: Callable[[str], None],
) -> MemberConnection:
    """Connect to the leader, which may start later. `hello` makes the first message of this machine's address and of
    how far its clock is ahead of the leader's, in seconds.

    Raises LeaderUnreachable when it has refused for `timeout_s` seconds, or cannot be reached for UNREACHABLE_S."""
    began = time.monotonic()
    noted = False
    while True:
        try:
            return _joined(host, port, key, hello)
        except ConnectionRefusedError as error:
            why, patience = error.strerror or "refused", timeout_s
        except (OSError, ValueError) as error:
            why, patience = getattr(error, "strerror", None) or str(error), min(UNREACHABLE_S, timeout_s)
        if time.monotonic() - began > patience:
            raise LeaderUnreachable(why)
        if not noted and time.monotonic() - began > CONNECT_S:
            noted = True
            notify(f"cannot reach {host}:{port} yet: {why}")
        time.sleep(_RETRY_S)


def _joined(host: str, port: int, key: bytes, hello: Callable[[str, float], PeerMessage]) -> MemberConnection:
    connection = PeerConnection(socket.create_connection((host, port), timeout=CONNECT_S))
    try:
        challenge = str(_answer(connection, "challenge"))
        message = hello(connection.local_address, _clock_ahead(connection))
        proof = hmac_digest(key, "doctor", challenge, message["index"], message["count"])
        connection.send({**message, "proof": proof})
    except BaseException:
        connection.close()
        raise
    return MemberConnection(connection)


def _clock_ahead(connection: PeerConnection) -> float:
    """Seconds by which this clock is ahead, from the round with the least delay."""
    # The round of least delay tells most, as in NTP's clock filter (RFC 5905, section 10).
    rounds = []
    for _ in range(_CLOCK_ROUNDS):
        sent = time.time()
        connection.send({"clock": True})
        there = float(_answer(connection, "clock"))
        received = time.time()
        rounds.append((received - sent, (sent + received) / 2 - there))
    return min(rounds)[1]


def _answer(connection: PeerConnection, name: str) -> Any:
    for message in connection.receive():
        if name in message:
            return message[name]
    raise ConnectionError("no dsrun doctor answers there")
