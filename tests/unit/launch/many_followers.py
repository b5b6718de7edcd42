"""`python -m tests.unit.launch.many_followers PORT NODES`: all nodes but node 0 of a run, in one process.

They join, wait for the first attempt, report that they have ended well, and leave when node 0 has decided.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from dataclasses import asdict

from dsrun import __version__
from dsrun.launch.coordinator.messages import NodeResult, shared_key
from dsrun.launch.coordinator.transport import allow_open_files, hmac_digest

KEY = shared_key(run="test", secret="word")


def messages(sock: socket.socket) -> Iterator[dict]:
    rest = b""
    while data := sock.recv(65536):
        *lines, rest = (rest + data).split(b"\n")
        yield from map(json.loads, lines)


def main(port: int, nodes: int) -> None:
    allow_open_files(nodes)
    socks = {node: socket.create_connection(("127.0.0.1", port)) for node in range(1, nodes)}
    streams = {node: messages(sock) for node, sock in socks.items()}

    def send(node: int, message: dict[str, object]) -> None:
        socks[node].sendall(json.dumps(message).encode() + b"\n")

    def wait(key: str) -> None:
        for stream in streams.values():
            next(message for message in stream if key in message)

    for node, stream in streams.items():
        asked = next(stream)["challenge"]
        proof = hmac_digest(KEY, "follower", asked, node, nodes)
        who = {"node": node, "nodes": nodes, "host": f"n{node}", "version": __version__}
        send(node, {**who, "challenge": "c", "proof": proof})
    wait("welcome")
    wait("begin")
    for node in streams:
        send(node, {"ended": asdict(NodeResult(node=node, ok=True))})
    wait("decision")
    print("decided", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
