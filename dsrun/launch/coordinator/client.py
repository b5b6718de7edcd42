"""The coordinator on all nodes but node 0, which it follows."""

import time
from collections.abc import Callable
from dataclasses import asdict

from dsrun.errors import DsrunError
from dsrun.launch.context import LocalLauncher
from dsrun.launch.coordinator import messages
from dsrun.launch.coordinator.transport import PEER_TIMEOUT_S, EventLoop, PeerConnection, PeerMessage
from dsrun.launch.supervisor.policy import RunDecision
from dsrun.runs.heartbeat import StopRequest


class FirstNodeLeft(messages.RendezvousError):
    """Node 0 has gone before all nodes had joined."""


class OverWithoutThisNode(messages.StoppedBeforeStart):
    """The run has ended before it took this node back."""

    def __init__(self, decision: RunDecision) -> None:
        DsrunError.__init__(self, "the run ended before this node was taken back")
        self.exit_code = decision.exit_code


class CoordinatorClient(messages.Coordinator, EventLoop):
    """The coordinator of the node at `place`, over a connection that node 0 has accepted."""

    def __init__(self, connection: PeerConnection, place: LocalLauncher, *, run_info: messages.RunInfo) -> None:
        messages.Coordinator.__init__(self, run_info)
        EventLoop.__init__(self)
        self.node = place.node
        self.members = tuple(range(place.nodes))
        self._connection = connection
        self._host = place.host
        self._recreated = place.recreated
        self._began = False
        self._abort = False
        self._hang_elsewhere = False
        self._evidence_complete = False
        self._left = False
        self._departed = False
        self._given_up = ""
        self.is_late = False
        """Whether the run goes on without this node: `take_part` waits for it then."""
        self._decision: RunDecision | None = None
        self.return_timeout_s = messages.RENDEZVOUS_TIMEOUT_S
        """Seconds that node 0 waits for a lost node."""
        self.watch(connection)
        self.begin()

    @property
    def local_address(self) -> str:  # type: ignore[override]
        return self._connection.local_address

    def gather(self) -> None:
        self.take_part(lambda: False, lambda: False)

    def take_part(self, is_ready: Callable[[], bool], give_up: Callable[[], bool]) -> None:
        told = False
        with self.changed:
            # A signal handler that notes a request wakes nobody, so this looks for one.
            while not self._began and not give_up():
                if not told and (told := is_ready()):
                    self.post(self._connection, {"ready": True})
                if request := self.stop_requested():
                    raise messages.StoppedBeforeStart(request)
                if self._decision:
                    raise OverWithoutThisNode(self._decision)
                if self._left:
                    what = f"rendezvous: the first node ({self._host}) disconnected before all nodes had joined"
                    raise FirstNodeLeft(what, fix="see its log")
                self.changed.wait(0.2)

    def check(self) -> bool:
        return self._abort or self._hang_elsewhere or self._left

    def hang_elsewhere(self) -> bool:
        return self._hang_elsewhere

    def share_evidence(self, give_up: Callable[[], bool]) -> None:
        self.post(self._connection, {"evidence": True})
        self.wait_until(lambda: self._evidence_complete or self._left or give_up(), messages.EVIDENCE_TIMEOUT_S)

    def announce_stop(self, request: StopRequest) -> None:
        if self._announced is None or self._announced.yields_to(request):
            self._announced = request
            self.post(self._connection, {"stop": asdict(request)})

    def report_and_wait(self, ended: messages.NodeResult, decide: messages.DecideNext) -> RunDecision:
        self.post(self._connection, {"ended": asdict(ended)})
        limit_s = messages.STRAGGLER_TIMEOUT_S + self.return_timeout_s + messages.DECISION_S
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
        known = {"ended_by_signal": self._departed, "recreated": self._recreated}
        return decision or messages.decide_without_server(self._host, **known, given_up=self._given_up)

    def close(self) -> None:
        self.post(self._connection, {"bye": True})
        self.end()

    # callbacks of the thread

    def on_message(self, connection: PeerConnection, message: PeerMessage) -> None:
        with self.changed:
            if "begin" in message:
                self.attempt, self.members = int(message["begin"]), tuple(message.get("nodes") or self.members)
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
                self._decision = messages.decision_from_dict(message["decision"])
                self.members = self._decision.nodes or self.members
                self._forget_regrouping()
                # Reset here: the next message may already be the next attempt's failure.
                self._abort = self._hang_elsewhere = self._evidence_complete = False
            elif "lost" in message:
                self._left, self._given_up = True, str(message["lost"])
            elif "bye" in message:
                self._left = self._departed = True
            self.changed.notify_all()

    def on_disconnect(self, connection: PeerConnection) -> None:
        with self.changed:
            self._left = True
            self.changed.notify_all()

    def on_timer(self) -> None:
        if self.is_lost(self._connection, PEER_TIMEOUT_S):
            self.drop(self._connection)
            self.on_disconnect(self._connection)
        else:
            self.post(self._connection, {"alive": True})
