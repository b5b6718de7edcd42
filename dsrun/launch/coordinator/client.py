"""The council's side of all nodes but the first: it reports, and does what the first node decides."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

from dsrun import __version__
from dsrun.errors import UsageError
from dsrun.launch.coordinator.messages import (
    GATHER_S,
    Decide,
    Ended,
    Facts,
    RendezvousError,
    Stopped,
    decision_from_dict,
    without_leader,
)
from dsrun.launch.coordinator.transport import SILENCE_S, Exchange, Message, Wire, challenge, is_proof, proof
from dsrun.launch.supervisor.policy import Decision

_CONNECT_S = 5.0
_AGAIN_S = 0.3


class Follower(Exchange):
    """The council of node `node`, over a connection on which the first node has welcomed it."""

    def __init__(self, wire: Wire, node: int, nodes: int, *, host: str, facts: Facts) -> None:
        super().__init__()
        self.node = node
        self.nodes = nodes
        self.attempt = 0
        self.facts = facts
        self._wire = wire
        self._host = host
        self._began = False
        self._over = False
        self._left = False
        self._departed = False
        self._asked: str | None = None
        self._announced: str | None = None
        self._decision: Decision | None = None
        self.watch(wire)
        self.begin()

    @property
    def local_address(self) -> str:
        """The address of this machine that the first node is reached from."""
        return str(self._wire.sock.getsockname()[0])

    def gather(self) -> None:
        """Wait until the first node says that all are there.

        Raises RendezvousError when it leaves instead, and Stopped when a signal came to a node.
        """
        with self.changed:
            while not self._began:
                if self.stop_asked():
                    raise Stopped(
                        f"{self.stop_asked()} came before the run began: the same command starts it"
                    )
                if self._left:
                    raise RendezvousError(
                        f"rendezvous: the first node ({self._host}) has left before all nodes were there",
                        fix="look at what it said",
                    )
                self.changed.wait(0.2)

    def check(self) -> bool:
        return self._over or self._left

    def announce_stop(self, name: str) -> None:
        if self._announced is None:
            self._announced = name
            self.post(self._wire, {"stop": name})

    def stop_asked(self) -> str | None:
        return self._asked or self._announced

    def settle(self, ended: Ended, decide: Decide) -> Decision:
        self.post(self._wire, {"ended": ended.as_dict()})
        with self.changed:
            while self._decision is None and not self._left:
                self.changed.wait(0.2)
            decision, self._decision = self._decision, None
        return decision or without_leader(self._host, departed=self._departed)

    def close(self) -> None:
        self.post(self._wire, {"bye": True})
        self.end()

    # what the thread does

    def heard(self, wire: Wire, message: Message) -> None:
        with self.changed:
            if "begin" in message:
                self.attempt = int(message["begin"])
                self._began = True
            elif "over" in message:
                self._over = True
            elif "stop" in message:
                self._asked = str(message["stop"])
            elif "decision" in message:
                try:
                    self._decision = decision_from_dict(message["decision"])
                except (TypeError, KeyError, ValueError) as error:
                    raise ConnectionError(str(error)) from None
                # Here and not where it is taken: the next attempt's failure may be the very next message.
                self._over = False
            elif "bye" in message:
                self._left = self._departed = True
            self.changed.notify_all()

    def gone(self, wire: Wire) -> None:
        with self.changed:
            self._left = True
            self.changed.notify_all()

    def tick(self) -> None:
        if time.monotonic() - self._wire.heard > SILENCE_S:
            self.drop(self._wire)
            self.gone(self._wire)
        else:
            self.post(self._wire, {"alive": True})


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Who wants to take part: node `node` of `nodes`, called `name` in messages, with the run's key."""

    node: int
    nodes: int
    name: str
    key: bytes


def join(host: str, port: int, seat: Seat, *, patience_s: float = GATHER_S) -> Follower:
    """Find the first node on `host`, which may start later than this one, and be welcomed.

    Raises RendezvousError when the first node is not there within
    `patience_s` seconds, UsageError when it refuses this one.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return _joined(host, port, seat)
        except (OSError, ValueError) as error:
            if time.monotonic() >= deadline:
                raise RendezvousError(
                    f"rendezvous: node {seat.node} could not reach the first node at {host}:{port} "
                    f"within {patience_s:.0f} s: {error}",
                    fix="is `dsrun launch` running there, and does a firewall let the port through?",
                ) from None
            time.sleep(min(_AGAIN_S, patience_s))


def _joined(host: str, port: int, seat: Seat) -> Follower:
    # All addresses that the name has, of both families, are tried in turn.
    wire = Wire(socket.create_connection((host, port), timeout=_CONNECT_S))
    try:
        number = challenge()
        question = _first(wire, [])
        rest: list[Message] = []
        wire.send(
            {
                "node": seat.node,
                "nodes": seat.nodes,
                "host": seat.name,
                "version": __version__,
                "challenge": number,
                "proof": proof(seat.key, "follower", question.get("challenge"), seat.node, seat.nodes),
            }
        )
        answer = _first(wire, rest)
        if "refused" in answer:
            raise UsageError(
                f"{host}:{port} refuses node {seat.node} of {seat.nodes}: {answer['refused']}",
                fix="all nodes need the same --nodes, --master-addr, --master-port and DSRUN_SECRET",
            )
        if not is_proof(answer.get("proof"), proof(seat.key, "leader", number)):
            raise ConnectionError("what answers there is not the first node of this run")
    except BaseException:
        wire.close()
        raise
    follower = Follower(wire, seat.node, seat.nodes, host=host, facts=dict(answer.get("welcome") or {}))
    for message in rest:
        follower.heard(wire, message)
    return follower


def _first(wire: Wire, rest: list[Message]) -> Message:
    """The next message; those that came with it go into `rest`."""
    deadline = time.monotonic() + _CONNECT_S
    while time.monotonic() < deadline:
        messages = wire.receive()
        if messages:
            rest += messages[1:]
            return messages[0]
    raise TimeoutError("no supervisor's words came in time")
