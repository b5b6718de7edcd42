"""The coordinator on node 0: it tracks all nodes and decides."""

import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace

from dsrun import __version__
from dsrun.errors import EXIT_RESUME, EXIT_TOOL_FAILED
from dsrun.launch.coordinator import messages
from dsrun.launch.coordinator.transport import PEER_TIMEOUT_S, EventLoop, PeerConnection, PeerMessage, hmac_digest
from dsrun.launch.supervisor.policy import NODE_LOST, RunDecision
from dsrun.runs.heartbeat import StopRequest
from dsrun.system.terminal.display import printable
from dsrun.system.terminal.stderr import print_note

# A host name of the DNS is no longer (RFC 1035).
_LONGEST_NAME = 253
_MOST_REFUSED = 8
_SILENT = "stopped answering"
_DISCONNECTED = "disconnected: its supervisor or the machine died"


class CoordinatorServer(messages.Coordinator, EventLoop):
    """The coordinator of node 0.

    `run_info` is sent to every node that joins, and `notify` is told now and then whom it waits for. Waits `timeout_s`
    seconds for all nodes at the start and, with `returns`, for lost nodes to come back; when these do not, `recreated`
    ones end to be resumed. `least` nodes are enough to go on, of as many `workers` each."""

    def __init__(
        self,
        listener: socket.socket,
        nodes: int,
        key: bytes,
        *,
        run_info: messages.RunInfo,
        timeout_s: float = messages.RENDEZVOUS_TIMEOUT_S,
        returns: bool = True,
        recreated: bool = False,
        least: int | None = None,
        workers: int = 1,
        notify: Callable[[str], None] = print_note,
    ) -> None:
        messages.Coordinator.__init__(self, run_info)
        EventLoop.__init__(self, listener)
        self.nodes = nodes
        self.members = tuple(range(nodes))
        self._least = nodes if least is None else least
        # Of many nodes that all have to be there nobody needs the list.
        self._is_elastic = self._least < nodes
        self._workers = workers if self._is_elastic else None
        self._losses: Counter[int] = Counter()
        self._key = key
        self._timeout_s = timeout_s
        self._returns = returns
        self._recreated = recreated
        self._notify = notify
        self._now = 0
        self._challenges: dict[PeerConnection, str] = {}
        self._peers: dict[int, messages.Peer] = {}
        self._by_connection: dict[PeerConnection, messages.Peer] = {}
        self._hosts: dict[int, str] = {}
        self._refused: dict[str, str] = {}
        # Whether a node that joins now, or leaves before it is taken in, is no concern of the others.
        self._has_refused_own = self._goes_on_without = False
        self._ends: dict[int, messages.NodeResult] = {}
        self._failed_at: float | None = None
        self._with_evidence: set[int] = set()
        self._forwarded: StopRequest | None = None
        self._done = False
        self.begin()

    @property
    def local_address(self) -> str:  # type: ignore[override]
        """This machine's address on a peer's connection; "::" before any peer has joined."""
        for peer in list(self._peers.values()):
            with suppress(OSError):
                return peer.connection.local_address
        return "::"

    def gather(self) -> None:
        missing = self._wait_for_all(self._timeout_s, messages.ELASTIC_START_S)
        if request := self.stop_requested():
            raise messages.StoppedBeforeStart(request)
        if len(missing) > self.nodes - self._least:
            who = messages.format_nodes(missing, self._hosts)
            if self._refused:
                refused = "; ".join(f"{name} was refused: {why}" for name, why in self._refused.items())
                fix = "all nodes need the same dsrun, --nodes and DSRUN_SECRET"
                raise messages.RendezvousError(f"rendezvous: {who} did not join; {refused}", fix=fix)
            raise messages.RendezvousError(
                f"rendezvous: {who} did not join within {self._timeout_s:.0f} s",
                fix="is `dsrun launch` running there, with the same --master-addr and --master-port?",
            )
        if missing:
            self._notify(f"beginning without {messages.format_nodes(missing, self._hosts)}")
        with self.changed:
            self._goes_on_without = self._is_elastic
            self._choose(missing)
            self._send_begin()

    def check(self) -> bool:
        with self.changed:
            return bool(self._with_evidence) or any(not ended.ok for ended in self._ends.values())

    def must_regroup(self) -> bool:
        first, longest, now = messages.RETURN_S, messages.LONGEST_RETURN_S, time.monotonic()
        with self.changed:
            ready = [each for each in self._peers.values() if each.waiting and each.ready]
        since = ((now - each.connection.opened, min(9, max(0, self._losses[each.node] - 1))) for each in ready)
        return self._is_elastic and any(seconds > min(longest, first * 2**times) for seconds, times in since)

    def hang_elsewhere(self) -> bool:
        return bool(self._with_evidence)

    def share_evidence(self, give_up: Callable[[], bool]) -> None:
        self._add_evidence(self.node)
        self.wait_until(lambda: len(self._with_evidence) == len(self.members) or give_up(), messages.EVIDENCE_TIMEOUT_S)

    def announce_stop(self, request: StopRequest) -> None:
        super().announce_stop(request)
        self.wake()

    def report_and_wait(self, ended: messages.NodeResult, decide: messages.DecideNext) -> RunDecision:
        self._record(ended)
        with self.changed:
            while len(self._ends) < len(self.members):
                self.changed.wait(0.2)
                self._drop_stragglers()
            ends = [self._ends[node] for node in self.members]
        decision = messages.unless_stopped(decide(ends), self.stop_requested())
        if decision.action == "restart":
            decision = self._with_all(decision)
        with self.changed:
            self._ends.clear()
            self._with_evidence.clear()
            self._failed_at = None
            self._now += 1
            self._done = decision.action == "stop"
            if self._is_elastic and not self._done:
                decision = replace(decision, nodes=self.members)
            self._post_to_nodes({"decision": asdict(decision)}, also_waiting=self._done)
            if decision.action == "restart":
                self._forget_regrouping()
                self._forwarded = None
                self._send_begin()
        return decision

    def close(self) -> None:
        self._done = True
        self.on_wake()
        for peer in list(self._peers.values()):
            self.post(peer.connection, {"bye": True})
        self.end()

    def _wait_for_all(self, seconds: float, enough_after_s: float = 0.0) -> list[int]:
        """The nodes still missing after that time, or when a stop is requested, or it is clear that they stay away; or
        after `enough_after_s` seconds, if enough are there to go on."""
        deadline, told, refused = time.monotonic() + seconds, time.monotonic() + messages.TELL_S, 0
        enough_at = time.monotonic() + enough_after_s
        while (missing := self._missing()) and time.monotonic() < deadline and not self.stop_requested():
            if self._has_refused_own and not self._returns:
                break
            if len(missing) <= self.nodes - self._least and time.monotonic() >= enough_at:
                break
            with self.changed:
                self.changed.wait(0.2)
            for name in list(self._refused)[refused:]:
                self._notify(f"{name} was refused: {self._refused[name]}")
            refused = len(self._refused)
            if time.monotonic() >= told:
                left, told = deadline - time.monotonic(), time.monotonic() + messages.TELL_AGAIN_S
                self._notify(f"waiting for {messages.format_nodes(missing, self._hosts)}, for {left:.0f} s more")
        return missing

    def _missing(self) -> list[int]:
        with self.changed:
            return [node for node in range(1, self.nodes) if node not in self._peers]

    def _with_all(self, decision: RunDecision) -> RunDecision:
        """A restart only if every lost node has come back, or enough are left."""
        missing = self._wait_for_all(self._timeout_s if self._returns else 0.0)
        if len(missing) <= self.nodes - self._least:
            with self.changed:
                late = [each.node for each in self._peers.values() if each.waiting and not each.ready]
            self._choose(missing, late)
            return messages.unless_stopped(decision, self.stop_requested())
        who = messages.format_nodes(missing, self._hosts)
        why = f"{who} did not come back within {self._timeout_s:.0f} s"
        if not self._returns:
            why = f"{who} {'is' if len(missing) == 1 else 'are'} lost"
        code = EXIT_RESUME if self._recreated else decision.exit_code or EXIT_TOOL_FAILED
        stop = replace(decision, action="stop", exit_code=code, wait_s=0.0, why=why, cause=NODE_LOST)
        return stop if not self.stop_requested() else messages.unless_stopped(decision, self.stop_requested())

    def _choose(self, missing: Sequence[int], late: Sequence[int] = ()) -> None:
        """Who takes part in the next attempt: not those `missing`, nor those that would hold it up, if the others are
        enough. One that is lost from now on is a loss of that attempt."""
        without = {*missing, *late} if len(missing) + len(late) <= self.nodes - self._least else {*missing}
        self.members = tuple(node for node in range(self.nodes) if node not in without)

    def _send_begin(self) -> None:
        begin: PeerMessage = {"begin": self._now} | ({"nodes": self.members} if self._is_elastic else {})
        with self.changed:
            for peer in self._peers.values():
                if peer.waiting and peer.node in self.members:
                    peer.waiting = False
                    self.post(peer.connection, begin)
            # Lost after it was counted, before it was started.
            for node in self.members[1:]:
                if node not in self._peers:
                    self._record(messages.lost_node(node, self._hosts[node], _DISCONNECTED))

    def _add_evidence(self, node: int) -> None:
        """The first node with evidence of a hang makes the others collect theirs; the last one, or its end, releases
        all."""
        with self.changed:
            if node in self._with_evidence:
                return
            if not self._with_evidence:
                self._post_to_nodes({"hang": True})
                # A node whose part has ended has no rank left to look at.
                self._with_evidence.update(self._ends)
            self._with_evidence.add(node)
            if len(self._with_evidence) == len(self.members):
                self._post_to_nodes({"evidence": True})
            self.changed.notify_all()

    def _post_to_nodes(self, message: PeerMessage, *, also_waiting: bool = False) -> None:
        for peer in self._peers.values():
            if also_waiting or not peer.waiting:
                self.post(peer.connection, message)

    def _record(self, ended: messages.NodeResult) -> None:
        with self.changed:
            # The first result stays: a node that is lost afterwards has reported all the same.
            self._ends.setdefault(ended.node, ended)
            if self._with_evidence:
                self._add_evidence(ended.node)
            if not ended.ok and self._failed_at is None:
                self._failed_at = time.monotonic()
                for peer in self._peers.values():
                    if peer.node != ended.node and not peer.waiting:
                        self.post(peer.connection, {"abort": ended.node})
            self.changed.notify_all()

    def _drop_stragglers(self) -> None:
        if self._failed_at is None or time.monotonic() - self._failed_at < messages.STRAGGLER_TIMEOUT_S:
            return
        for node in self.members[1:]:
            if node not in self._ends:
                # Its supervisor hears of it, and ends its ranks.
                self._drop_peer(node, f"did not end its ranks within {messages.STRAGGLER_TIMEOUT_S:.0f} s")

    def _drop_peer(self, node: int, how: str, *, cause: str = "node_lost") -> None:
        with self.changed:
            peer = self._peers.pop(node, None)
            if peer is None:
                return
            self._by_connection.pop(peer.connection, None)
            self.post(peer.connection, {"lost": how})
            self.dismiss(peer.connection)
            began = not peer.waiting
            # One that left when it was about to be taken in has made the others stop all the same.
            self._losses[node] += (began or peer.ready) and not self._done
        if began and not self._done:
            self._record(messages.lost_node(node, peer.host, how, cause=cause))

    # callbacks of the thread

    def on_connect(self, connection: PeerConnection) -> None:
        challenge = self._challenges[connection] = secrets.token_hex(16)
        self.post(connection, {"dsrun": __version__, "challenge": challenge})

    def on_message(self, connection: PeerConnection, message: PeerMessage) -> None:
        challenge = self._challenges.pop(connection, None)
        if challenge is not None:
            self._handshake(connection, challenge, message)
            return
        peer = self._by_connection.get(connection)
        if peer is None:
            return
        if "ended" in message:
            self._record(messages.NodeResult.from_dict({**message["ended"], "node": peer.node}))
        elif "evidence" in message:
            self._add_evidence(peer.node)
        elif "ready" in message:
            peer.ready = True
        elif "stop" in message and not (peer.waiting and self._goes_on_without):
            request = StopRequest.from_dict(message["stop"])
            known = self.stop_requested()
            if known is None or known.yields_to(request):
                self._received = request
        elif "bye" in message:
            self._drop_peer(peer.node, "was ended by a signal", cause="interrupted")

    def on_disconnect(self, connection: PeerConnection) -> None:
        self._challenges.pop(connection, None)
        peer = self._by_connection.get(connection)
        if peer is not None:
            self._drop_peer(peer.node, _DISCONNECTED)

    def on_timer(self) -> None:
        now = time.monotonic()
        for connection in list(self._challenges):
            if now - connection.opened > messages.HANDSHAKE_TIMEOUT_S:
                del self._challenges[connection]
                self.drop(connection)
        for peer in list(self._peers.values()):
            if self.is_lost(peer.connection, PEER_TIMEOUT_S):
                self._drop_peer(peer.node, _SILENT)
            else:
                self.post(peer.connection, {"alive": True})

    def on_wake(self) -> None:
        stop = self.stop_requested()
        if stop and self._forwarded != stop:
            for peer in list(self._peers.values()):
                if not (peer.waiting and stop.regroups):
                    self.post(peer.connection, {"stop": asdict(stop)})
            # Set last: `close` runs this in another thread, and must not disconnect a peer before it is told.
            self._forwarded = stop

    def _handshake(self, connection: PeerConnection, challenge: str, message: PeerMessage) -> None:
        why = messages.reject_reason(challenge, message, key=self._key, nodes=self.nodes, workers=self._workers)
        taken = None if why else messages.still_taken(message, self._peers)
        if why or taken:
            ours = why != messages.ANOTHER_RUN
            self.post(connection, {"refused": why or taken, "ours": ours, "for_now": bool(taken)})
            self.dismiss(connection)
            if why:
                self._note_refusal(message, why)
                self._has_refused_own = self._has_refused_own or ours
            return
        node, host = int(message["node"]), printable(str(message.get("host")))[:_LONGEST_NAME]
        if node in self._peers:
            self._drop_peer(node, _SILENT)
        welcome = hmac_digest(self._key, "leader", message.get("challenge"))
        self.post(connection, {"welcome": dict(self.run_info), "proof": welcome, "begun": self._goes_on_without})
        with self.changed:
            self._hosts[node] = host
            peer = messages.Peer(node, host, connection)
            self._peers[node] = self._by_connection[connection] = peer
            self.changed.notify_all()

    def _note_refusal(self, message: PeerMessage, why: str) -> None:
        """Remember why somebody may not join, by the name that it gives itself."""
        host, node = printable(str(message.get("host")))[:_LONGEST_NAME], message.get("node")
        who = f"node {node} ({host})" if type(node) is int and 0 <= node < 10**6 else host
        with self.changed:
            if len(self._refused) < _MOST_REFUSED:
                self._refused.setdefault(who, why)
            self.changed.notify_all()
