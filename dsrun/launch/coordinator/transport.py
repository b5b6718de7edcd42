"""JSON objects over TCP, one a line, and the thread that carries them between the supervisors of a run."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import selectors
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any

from dsrun.errors import UsageError

Message = dict[str, Any]

ALIVE_S = 1.0
"""Seconds between two signs of life of a connection."""
SILENCE_S = 15.0
"""Seconds without one after which the other side counts as lost; a process that died is noticed at once."""

_LOOK_S = 0.25
_SEND_S = 5.0
_LONGEST = 1 << 20


def proof(key: bytes, *words: object) -> str:
    """HMAC-SHA256 of the words: shows that one knows the key without telling it."""
    return hmac.new(key, json.dumps([str(word) for word in words]).encode(), hashlib.sha256).hexdigest()


def is_proof(shown: object, expected: str) -> bool:
    """Whether what the other side has shown, which may be anything, is the proof; says nothing by the time it takes."""
    return hmac.compare_digest(str(shown).encode(errors="replace"), expected.encode())


def challenge() -> str:
    """A number used once."""
    return os.urandom(16).hex()


class Wire:
    """One connection. `heard` is when (CLOCK_MONOTONIC, seconds) something last came from the other side."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(_SEND_S)
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.heard = time.monotonic()
        self._rest = b""

    def send(self, message: Message) -> None:
        """Raises OSError when the other side is gone."""
        self.sock.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[Message]:
        """What has come, complete messages only. Raises ConnectionError at the end, or for what is no message."""
        data = self.sock.recv(65536)
        if not data:
            raise ConnectionError("closed by the other side")
        self.heard = time.monotonic()
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST:
            raise ConnectionError("not a supervisor's words")
        return [_message(line) for line in lines]

    def close(self) -> None:
        with suppress(OSError):
            self.sock.close()


def _message(line: bytes) -> Message:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):  # the latter by a line of brackets
        raise ConnectionError("not a supervisor's words") from None
    if not isinstance(found, dict):
        raise ConnectionError("not a supervisor's words")
    return found


class Exchange:
    """A thread that reads, sends and watches over connections.

    All sending is done in the thread: `post` only appends to a queue, so that a signal handler may call it whatever
    the main thread was at. Subclasses say what messages mean in `heard`, `gone` and `tick`, which run in the thread.
    """

    def __init__(self, listener: socket.socket | None = None) -> None:
        self.changed = threading.Condition()
        self._selector = selectors.DefaultSelector()
        self._outbox: deque[tuple[Wire, Message | None]] = deque()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._listener = listener
        if listener is not None:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, None)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="council", daemon=True)

    def post(self, wire: Wire, message: Message) -> None:
        """Send `message` soon."""
        self._outbox.append((wire, message))
        self.wake()

    def dismiss(self, wire: Wire) -> None:
        """Close a connection once all that was posted is sent."""
        self._outbox.append((wire, None))
        self.wake()

    def wake(self) -> None:
        """Have the thread look about itself now."""
        with suppress(OSError):  # full: it is awake already
            self._wake_write.send(b".")

    def watch(self, wire: Wire) -> None:
        """From here on the connection is read. Before the thread runs, or within it."""
        self._selector.register(wire.sock, selectors.EVENT_READ, wire)

    def drop(self, wire: Wire) -> None:
        """Close a connection. Within the thread."""
        with suppress(KeyError, ValueError):
            self._selector.unregister(wire.sock)
        wire.close()

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Send what is still to be sent, close all connections, and end the thread."""
        self._closing = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join(timeout=_SEND_S)

    def admitted(self, wire: Wire) -> None:
        """A new connection."""

    def heard(self, wire: Wire, message: Message) -> None:
        """A message."""

    def gone(self, wire: Wire) -> None:
        """A connection that was closed by the other side, or failed; it is dropped already."""

    def look(self) -> None:
        """Called after every message, every `wake`, and now and then."""

    def tick(self) -> None:
        """Called once every ALIVE_S."""

    def _run(self) -> None:
        last = 0.0
        while not self._closing:
            for key, _ in self._selector.select(_LOOK_S):
                self._read(key)
            self.look()
            self._flush()
            if time.monotonic() - last >= ALIVE_S:
                last = time.monotonic()
                self.tick()
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
        with suppress(OSError):
            sock, _ = self._listener.accept()
            wire = Wire(sock)
            self.watch(wire)
            self.admitted(wire)

    def _listen(self, wire: Wire) -> None:
        try:
            for message in wire.receive():
                if wire.sock.fileno() >= 0:
                    self.heard(wire, message)
        except OSError:
            self._lost(wire)

    def _flush(self) -> None:
        while self._outbox:
            wire, message = self._outbox.popleft()
            if wire.sock.fileno() < 0:
                continue
            if message is None:
                self.drop(wire)
                continue
            try:
                wire.send(message)
            except OSError:
                self._lost(wire)

    def _lost(self, wire: Wire) -> None:
        self.drop(wire)
        self.gone(wire)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on `port` of all addresses, or of the loopback alone when `host` is on it.

    Raises UsageError when the port is taken.
    """
    loopback = host in ("localhost", "::1") or host.startswith("127.")
    try:
        if not loopback and socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host if loopback else "", port), family=family, backlog=1024)
    except OSError as error:
        raise UsageError(
            f"port {port}, on which the nodes' supervisors meet, cannot be had: {error.strerror}",
            fix="choose another --master-port; the next one is the supervisors'",
        ) from None
