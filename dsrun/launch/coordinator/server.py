"""The council's side of the first node: it knows where all nodes are, and decides."""

from __future__ import annotations

import socket
import time
from contextlib import suppress

from dsrun import __version__
from dsrun.launch.coordinator.handshake import PATIENCE_S, Guest, Member, refusal
from dsrun.launch.coordinator.messages import (
    GATHER_S,
    Decide,
    Ended,
    Facts,
    RendezvousError,
    Stopped,
    decision_as_dict,
    departed,
    lost,
    nodes_named,
    unless_stopped,
)
from dsrun.launch.coordinator.transport import SILENCE_S, Exchange, Message, Wire, proof
from dsrun.launch.supervisor.policy import Decision

STRAGGLE_S = 60.0
"""Seconds that a node has to end its part of an attempt after another's has failed."""


class Leader(Exchange):
    """Node 0's council. `facts` are handed to every node that joins; it waits `patience_s` seconds for all of them at
    the start, and with `returns` also for lost ones to come back."""

    def __init__(
        self,
        listener: socket.socket,
        nodes: int,
        key: bytes,
        *,
        facts: Facts,
        patience_s: float = GATHER_S,
        returns: bool = True,
    ) -> None:
        super().__init__(listener)
        self.node = 0
        self.nodes = nodes
        self.attempt = 0
        self._key = key
        self._facts = dict(facts)
        self._patience_s = patience_s
        self._returns = returns
        self._now = 0
        self._guests: dict[Wire, Guest] = {}
        self._members: dict[int, Member] = {}
        self._hosts: dict[int, str] = {}
        self._ends: dict[int, Ended] = {}
        self._failed_at: float | None = None
        self._announced: str | None = None
        self._asked: str | None = None
        self._told: str | None = None
        self._done = False
        self.begin()

    @property
    def local_address(self) -> str:
        """The address of this machine at which another node has found it; that of all, before one has."""
        for member in list(self._members.values()):
            with suppress(OSError):
                return str(member.wire.sock.getsockname()[0])
        return "::"

    def gather(self) -> None:
        """Wait until all nodes are there, and let them begin.

        Raises RendezvousError naming those that did not come, and Stopped when a signal came to one that did.
        """
        missing = self._wait_for_all(self._patience_s)
        if self.stop_asked():
            raise Stopped(f"{self.stop_asked()} came before the run began: the same command starts it")
        if missing:
            raise RendezvousError(
                f"rendezvous: {nodes_named(missing, self._hosts)} did not come within {self._patience_s:.0f} s",
                fix="is `dsrun launch` running there, with the same --master-addr and --master-port?",
            )
        self._send_begin()

    def check(self) -> bool:
        with self.changed:
            return any(not ended.ok for ended in self._ends.values())

    def announce_stop(self, name: str) -> None:
        self._announced = self._announced or name
        self.wake()

    def stop_asked(self) -> str | None:
        return self._announced or self._asked

    def settle(self, ended: Ended, decide: Decide) -> Decision:
        self._record(ended)
        with self.changed:
            while len(self._ends) < self.nodes:
                self.changed.wait(0.2)
                self._give_up_stragglers()
            ends = [self._ends[node] for node in range(self.nodes)]
        decision = unless_stopped(decide(ends), self.stop_asked())
        if decision.action == "restart":
            decision = self._with_all(decision)
        with self.changed:
            self._ends.clear()
            self._failed_at = None
            self._now += 1
            self._done = decision.action == "stop"
            for member in self._members.values():
                if not member.waiting:
                    self.post(member.wire, {"decision": decision_as_dict(decision)})
        if decision.action == "restart":
            self._send_begin()
        return decision

    def close(self) -> None:
        self._done = True
        self.look()
        for member in list(self._members.values()):
            self.post(member.wire, {"bye": True})
        self.end()

    def _wait_for_all(self, seconds: float) -> list[int]:
        """The nodes that are missing after that time, or when a stop was asked for."""
        deadline = time.monotonic() + seconds
        with self.changed:
            while missing := [node for node in range(1, self.nodes) if node not in self._members]:
                if time.monotonic() >= deadline or self.stop_asked():
                    return missing
                self.changed.wait(0.2)
        return []

    def _with_all(self, decision: Decision) -> Decision:
        """A restart only when every lost node has come back."""
        missing = self._wait_for_all(self._patience_s if self._returns else 0.0)
        if not missing:
            return unless_stopped(decision, self.stop_asked())
        who = nodes_named(missing, self._hosts)
        why = f"{who} did not come back within {self._patience_s:.0f} s"
        if not self._returns:
            why = f"{who} {'is' if len(missing) == 1 else 'are'} lost"
        stop = Decision(
            action="stop", exit_code=decision.exit_code or 1, wait_s=0.0, why=why, remedy=decision.remedy
        )
        return stop if not self.stop_asked() else unless_stopped(decision, self.stop_asked())

    def _send_begin(self) -> None:
        with self.changed:
            for member in self._members.values():
                if member.waiting:
                    member.waiting = False
                    self.post(member.wire, {"begin": self._now})
            # Lost between being counted and being told to begin.
            for node in range(1, self.nodes):
                if node not in self._members:
                    self._record(lost(node, self._hosts[node], silent=False))

    def _record(self, ended: Ended) -> None:
        with self.changed:
            self._ends.setdefault(ended.node, ended)
            if not ended.ok and self._failed_at is None:
                self._failed_at = time.monotonic()
                for member in self._members.values():
                    if member.node != ended.node:
                        self.post(member.wire, {"over": ended.node})
            self.changed.notify_all()

    def _give_up_stragglers(self) -> None:
        if self._failed_at is None or time.monotonic() - self._failed_at < STRAGGLE_S:
            return
        for node in range(1, self.nodes):
            if node not in self._ends:
                # Its supervisor sees the connection end, and ends what it has.
                self._lose(node, lost(node, self._hosts[node], silent=True))

    def _lose(self, node: int, end: Ended) -> None:
        with self.changed:
            member = self._members.pop(node, None)
            if member is None:
                return
            self.post(member.wire, {"bye": True})
            self.dismiss(member.wire)
            began = not member.waiting
        if began and not self._done:
            self._record(end)

    # what the thread does

    def admitted(self, wire: Wire) -> None:
        guest = self._guests[wire] = Guest(wire)
        self.post(wire, {"dsrun": __version__, "challenge": guest.number})

    def heard(self, wire: Wire, message: Message) -> None:
        guest = self._guests.pop(wire, None)
        if guest is not None:
            self._judge(guest, message)
            return
        member = self._member(wire)
        if member is None:
            return
        if "ended" in message:
            try:
                ended = Ended.from_dict({**message["ended"], "node": member.node})
            except (TypeError, KeyError, ValueError) as error:
                raise ConnectionError(str(error)) from None
            self._record(ended)
        elif "stop" in message:
            self._asked = self._asked or str(message["stop"])
        elif "bye" in message:
            self._lose(member.node, departed(member.node, member.host))

    def gone(self, wire: Wire) -> None:
        self._guests.pop(wire, None)
        member = self._member(wire)
        if member is not None:
            self._lose(member.node, lost(member.node, member.host, silent=False))

    def tick(self) -> None:
        now = time.monotonic()
        for guest in list(self._guests.values()):
            if now - guest.since > PATIENCE_S:
                del self._guests[guest.wire]
                self.drop(guest.wire)
        for member in list(self._members.values()):
            if now - member.wire.heard > SILENCE_S:
                self._lose(member.node, lost(member.node, member.host, silent=True))
            else:
                self.post(member.wire, {"alive": True})

    def look(self) -> None:
        stop = self.stop_asked()
        if stop and self._told != stop:
            for member in list(self._members.values()):
                self.post(member.wire, {"stop": stop})
            # Not before: both threads come here, and `close` must not say good-bye to whom the other has yet to tell.
            self._told = stop

    def _member(self, wire: Wire) -> Member | None:
        return next((each for each in list(self._members.values()) if each.wire is wire), None)

    def _judge(self, guest: Guest, message: Message) -> None:
        why = refusal(guest, message, key=self._key, nodes=self.nodes, members=self._members)
        if why:
            self.post(guest.wire, {"refused": why})
            self.dismiss(guest.wire)
            return
        node, host = int(message["node"]), str(message.get("host"))
        if node in self._members:
            self._lose(node, lost(node, self._hosts[node], silent=True))
        welcome = proof(self._key, "leader", message.get("challenge"))
        self.post(guest.wire, {"welcome": self._facts, "proof": welcome})
        with self.changed:
            self._hosts[node] = host
            self._members[node] = Member(node, host, guest.wire)
            self.changed.notify_all()
