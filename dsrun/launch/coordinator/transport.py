"""JSON lines over TCP between the supervisors of a run, and the thread that sends and receives them."""

import errno
import hashlib
import hmac
import json
import resource
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dsrun.launch.refusals import refusal
from dsrun.system.net import own_address, plain_address

PeerMessage = dict[str, Any]

HEARTBEAT_INTERVAL_S = 1.0
"""Seconds between two heartbeats of a connection."""
PEER_TIMEOUT_S = 15.0
"""Seconds without a message after which a peer counts as lost, where its messages come in time; a closed connection is
noticed at once."""
LONGEST_TIMEOUT_S = 120.0
"""The limit on machines so busy that messages come late."""
# A silence is a loss only if it is so many times as long as the delays of the last minutes.
_TIMES_A_DELAY = 5

_POLL_S = 0.25
# Below PEER_TIMEOUT_S: one peer that takes nothing holds up the thread whose heartbeats keep all others alive.
_SEND_S = 5.0
# A line without an end is no supervisor's, and must not fill the memory.
_LONGEST = 1 << 20
_USUAL_FILES = 512
_REMEMBERED_S = 600.0


def hmac_digest(key: bytes, *values: object) -> str:
    """HMAC-SHA256 of the values: proves knowledge of the key without sending it."""
    # As JSON, for joined as they are "1", "23" and "12", "3" would have one digest.
    return hmac.new(key, json.dumps([str(word) for word in values]).encode(), hashlib.sha256).hexdigest()


def digests_match(shown: object, expected: str) -> bool:
    """Whether the received value, of any type, is the expected digest; in constant time."""
    # As bytes: of text it takes ASCII only, and a stranger sends what he likes (Python's hmac).
    return hmac.compare_digest(str(shown).encode(errors="replace"), expected.encode())


class RecentDelays:
    """How late messages have come in the last minutes, in seconds by CLOCK_MONOTONIC: a busy machine is not taken for a
    lost one."""

    def __init__(self) -> None:
        self._delays: deque[tuple[float, float]] = deque()

    def add(self, now: float, seconds: float) -> None:
        """One that ended at `now`. Those that are both older and shorter tell nothing any more."""
        while self._delays and self._delays[-1][1] <= seconds:
            self._delays.pop()
        self._delays.append((now, seconds))

    def longest(self, now: float) -> float:
        """The longest one, 0 for none."""
        while self._delays and now - self._delays[0][0] > _REMEMBERED_S:
            self._delays.popleft()
        return self._delays[0][1] if self._delays else 0.0


class PeerConnection:
    """One connection. `opened` and `last_received` are CLOCK_MONOTONIC in seconds."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(_SEND_S)
        with suppress(OSError):
            # Nagle's algorithm would keep a short message back until the one before it is acknowledged (tcp(7)).
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.opened = self.last_received = time.monotonic()
        self.delays = RecentDelays()
        self._rest = b""

    def send(self, message: PeerMessage) -> None:
        """Raises OSError if the connection is broken."""
        self.sock.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[PeerMessage]:
        """The complete messages received. Raises ConnectionError at the end of the stream and for invalid data."""
        data = self.sock.recv(65536)
        if not data:
            raise ConnectionError("closed by the peer")
        now = time.monotonic()
        self.delays.add(now, now - self.last_received)
        self.last_received = now
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST:
            raise ConnectionError("not a supervisor's message")
        return [_message(line) for line in lines]

    @property
    def local_address(self) -> str:
        return plain_address(str(self.sock.getsockname()[0]))

    def close(self) -> None:
        with suppress(OSError):
            self.sock.close()


def _message(line: bytes) -> PeerMessage:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):  # the latter by a line of brackets
        found = None
    if not isinstance(found, dict):
        raise ConnectionError("not a supervisor's message")
    return found


class EventLoop:
    """A thread that reads from, writes to and monitors connections.

    Only the thread sends: `post` appends to a queue, so a signal handler may call it at any time. Subclasses handle
    events in `on_message`, `on_disconnect` and `on_timer`, which run in the thread."""

    def __init__(self, listener: socket.socket | None = None) -> None:
        self.changed = threading.Condition()
        self._selector = selectors.DefaultSelector()
        self._outbox: deque[tuple[PeerConnection, PeerMessage | None]] = deque()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._listener = listener
        if listener is not None:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, None)
        self._closing = False
        self._delays = RecentDelays()
        self._thread = threading.Thread(target=self._run, name="coordinator", daemon=True)

    def post(self, connection: PeerConnection, message: PeerMessage) -> None:
        """Queue `message` for sending."""
        # An append is atomic. A lock could be held by the code that the signal handler has interrupted.
        self._outbox.append((connection, message))
        self.wake()

    def dismiss(self, connection: PeerConnection) -> None:
        """Close a connection after its queued messages are sent."""
        self._outbox.append((connection, None))
        self.wake()

    def wake(self) -> None:
        """Run the thread's `on_wake` now."""
        with suppress(OSError):  # full: it is awake already
            self._wake_write.send(b".")

    def watch(self, connection: PeerConnection) -> None:
        """Read from the connection from now on. Call before the thread runs, or in it."""
        self._selector.register(connection.sock, selectors.EVENT_READ, connection)

    def drop(self, connection: PeerConnection) -> None:
        """Close a connection. Call in the thread."""
        with suppress(KeyError, ValueError):
            self._selector.unregister(connection.sock)
        connection.close()

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Send all queued messages, close all connections, and end the thread."""
        self._closing = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join(timeout=_SEND_S)

    def on_connect(self, connection: PeerConnection) -> None:
        """A new connection."""

    def on_message(self, connection: PeerConnection, message: PeerMessage) -> None:
        """A message."""

    def on_disconnect(self, connection: PeerConnection) -> None:
        """A connection that the peer closed or that failed; it is already dropped."""

    def on_wake(self) -> None:
        """Called after every message, after every `wake`, and at least every quarter of a second."""

    def on_timer(self) -> None:
        """Called once every HEARTBEAT_INTERVAL_S."""

    def is_lost(self, connection: PeerConnection, limit_s: float) -> bool:
        """Whether the peer has been silent for `limit_s` seconds; on a busy machine, for several times as long as its
        messages, or this thread, came late before."""
        now = time.monotonic()
        delay = max(connection.delays.longest(now), self._delays.longest(now))
        limit_s = max(limit_s, min(LONGEST_TIMEOUT_S, _TIMES_A_DELAY * delay))
        return now - connection.last_received > limit_s

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait for what a message may change, at most `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        with self.changed:
            while not condition() and time.monotonic() < deadline:
                self.changed.wait(0.2)

    def _run(self) -> None:
        last = 0.0
        while not self._closing:
            for key, _ in self._selector.select(_POLL_S):
                self._read(key)
            self.on_wake()
            self._flush()
            now = time.monotonic()
            if now - last >= HEARTBEAT_INTERVAL_S:
                self._delays.add(now, now - last if last else 0.0)
                last = now
                self.on_timer()
                self._flush()
        self._flush()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        self._wake_write.close()

    def _read(self, key: selectors.SelectorKey) -> None:
        if key.fileobj is self._wake_read:
            with suppress(OSError):
                self._wake_read.recv(4096)
        elif key.fileobj is self._listener:
            self._accept()
        elif key.data.sock.fileno() >= 0:  # not dropped by what came before it in this round
            self._listen(key.data)

    def _accept(self) -> None:
        if self._listener is None:
            return
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            # The connection waits in the backlog, and the listener stays readable: without a pause this would spin.
            if error.errno in (errno.EMFILE, errno.ENFILE):
                time.sleep(_POLL_S)
            return
        connection = PeerConnection(sock)
        self.watch(connection)
        self.on_connect(connection)

    def _listen(self, connection: PeerConnection) -> None:
        try:
            for message in connection.receive():
                if connection.sock.fileno() >= 0:
                    self.on_message(connection, message)
        except (OSError, TypeError, KeyError, ValueError):  # the latter by a message of another form
            self._lost(connection)

    def _flush(self) -> None:
        while self._outbox:
            connection, message = self._outbox.popleft()
            if connection.sock.fileno() < 0:
                continue
            if message is None:
                self.drop(connection)
                continue
            try:
                connection.send(message)
            except OSError:
                self._lost(connection)

    def _lost(self, connection: PeerConnection) -> None:
        self.drop(connection)
        self.on_disconnect(connection)


def allow_open_files(count: int) -> None:
    """Raise the soft limit of open files to `count` more than a process usually needs, as far as the hard limit allows:
    on many systems it is 1024, and node 0 has a connection per node."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _USUAL_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on `port` of the address that the other nodes have for this machine as `host`.

    Of all addresses where that is not one: the name is that of a gateway, or of several networks. Raises UsageError if
    the port is in use."""
    # The backlog below is for nodes that connect in the same moment; the kernel cuts it to net.core.somaxconn
    # (listen(2)).
    address = own_address(host)
    try:
        if address is None and socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
        family = socket.AF_INET6 if address and ":" in address else socket.AF_INET
        return socket.create_server((address or "", port), family=family, backlog=1024)
    except OSError as error:
        raise refusal("remote.port", port=port, why=error.strerror) from None
