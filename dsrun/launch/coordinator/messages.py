"""What the supervisors of all nodes exchange, so that every attempt starts and ends on all of them.

Node 0 listens on the port after the rendezvous port; the others connect to it. Each node reports the result of its part
of an attempt; node 0 then decides what comes next, and all nodes follow. A node that disconnects or stops answering is
lost; a new supervisor can replace it."""

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from dsrun import __version__
from dsrun.errors import EXIT_RESUME, EXIT_TOOL_FAILED, DsrunError
from dsrun.launch.coordinator.transport import PeerConnection, PeerMessage, digests_match, hmac_digest
from dsrun.launch.memory_fallback import MemoryFallback
from dsrun.launch.supervisor.policy import NODE_LOST, AttemptFailure, RunDecision
from dsrun.runs.heartbeat import StopRequest

RunInfo = Mapping[str, str]
PORT = "port"
"""The key of a RunInfo whose value is the port on node 0 where the ranks meet."""

RENDEZVOUS_TIMEOUT_S = 600.0
"""Seconds to wait for all nodes at the start, and for a lost node to come back."""

ELASTIC_START_S = 60.0
"""Seconds to wait at the start for the nodes that a run can do without (--elastic)."""

RETURN_S, LONGEST_RETURN_S = 10.0, 1800.0
"""Seconds that a node which came back must have stayed until the run stops to take it in, twice as many after each
further loss of it, up to the second number: one that comes and goes would cost more steps than it makes."""

TELL_S = 10.0
"""Seconds after which a node that waits for others says so; on a cluster they start within seconds of each other."""
TELL_AGAIN_S = 60.0

STRAGGLER_TIMEOUT_S = 60.0
"""Seconds in which a node must end its attempt after another node failed."""

DECISION_S = 60.0
"""Seconds that node 0 may take to decide when all it waits for is there: it looks at checkpoints on a file server."""

_MOST_NAMED = 8
"""Nodes in a line."""

EVIDENCE_TIMEOUT_S = 15.0
"""Seconds that a node which has collected evidence of a hang waits for the others: what collecting takes at most."""


@dataclass(frozen=True, kw_only=True)
class NodeResult:
    """The result of one node's part of an attempt.

    `ok`: all its ranks exited with 0; `interrupted`: because they were asked to stop. `failure` is set if not `ok`."""

    node: int
    ok: bool
    interrupted: bool = False
    failure: AttemptFailure | None = None

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Self:
        """The inverse of `asdict`; TypeError or KeyError for anything else."""
        return cls(**{**found, "failure": AttemptFailure(**found["failure"]) if found["failure"] else None})


DecideNext = Callable[[list[NodeResult]], RunDecision]


class RendezvousError(DsrunError):
    """Not all nodes joined in time (cause rendezvous_timeout)."""


class StoppedBeforeStart(DsrunError):
    """`request` came before the run started, so nothing is lost."""

    exit_code = EXIT_RESUME

    def __init__(self, request: StopRequest) -> None:
        super().__init__(f"{request} came before the run started: the same command starts it")


class Coordinator:
    """A supervisor's view of the supervisors on the other nodes. In this class there are none; subclasses connect."""

    node = 0
    attempt = 0
    """Number of the first attempt: 0, or more on a node that rejoins a run."""
    members: tuple[int, ...] = (0,)
    """The nodes of the attempt, in the order of their ranks; fewer than all where nodes are lost (--elastic)."""
    local_address: str | None = None
    """This machine's address on the network of the nodes; None on a single node."""
    _announced: StopRequest | None = None
    _received: StopRequest | None = None

    def __init__(self, run_info: RunInfo | None = None) -> None:
        self.run_info: RunInfo = run_info or {}
        """What node 0 sent to all nodes."""

    def gather(self) -> None:
        """Wait until all nodes have joined and node 0 starts the first attempt.

        Raises RendezvousError if nodes are missing, and StoppedBeforeStart if any node was asked to stop."""

    def take_part(self, is_ready: Callable[[], bool], give_up: Callable[[], bool]) -> None:
        """On a node that joins a run which goes on without it: wait until it is taken in, which is not asked for before
        its ranks can start at once."""

    def check(self) -> bool:
        """Whether this node must end its attempt because another node failed or is lost, or its ranks hang."""
        return False

    def must_regroup(self) -> bool:
        """On node 0: whether nodes have come back that the attempt runs without, and are to be taken in now."""
        return False

    def hang_elsewhere(self) -> bool:
        """Whether `check` is due to ranks that hang: this node must find out where its own are before it ends them."""
        return False

    def share_evidence(self, give_up: Callable[[], bool]) -> None:
        """After a hang: tell all nodes that this one has collected evidence, and wait until they have, too.

        Ranks that are ended earlier make those of other nodes fail, which no longer stand where they hung. Returns
        after EVIDENCE_TIMEOUT_S at the latest, or on `give_up`."""

    def announce_stop(self, request: StopRequest) -> None:
        """Ask all nodes to save and exit. Safe in a signal handler."""
        if self._announced is None or self._announced.yields_to(request):
            self._announced = request

    def stop_requested(self) -> StopRequest | None:
        """The request that was announced on any node, or None."""
        if self._announced and self._announced.yields_to(self._received):
            return self._received
        return self._announced or self._received

    def _forget_regrouping(self) -> None:
        """The ranks have left, to be started again."""
        known = (self._announced, self._received)
        self._announced, self._received = (None if each and each.is_over else each for each in known)

    def report_and_wait(self, ended: NodeResult, decide: DecideNext) -> RunDecision:
        """Report this node's result, wait for all nodes, and return the decision of node 0.

        `decide` is called on node 0 with one `NodeResult` per node, in order. "restart" is returned once every node is
        ready to start again; it becomes "stop" if any node was asked to stop."""
        return unless_stopped(decide([ended]), self._announced)

    def close(self) -> None:
        """Disconnect. After a decision to stop, the other nodes do not count this as a loss."""


def unless_stopped(decision: RunDecision, request: StopRequest | None) -> RunDecision:
    """`decision`, with a restart turned into a stop if the run was asked to stop."""
    if decision.action == "stop" or request is None or request.regroups:
        return decision
    why = f"{request} came during a restart: the same command resumes from here"
    return replace(decision, action="stop", exit_code=EXIT_RESUME, wait_s=0.0, why=why)


def lost_node(node: int, host: str, how: str, *, cause: str = NODE_LOST) -> NodeResult:
    failure = AttemptFailure(cause=cause, node=node, host=host, message=f"node {node} ({host}) {how}")
    return NodeResult(node=node, ok=False, failure=failure)


def decide_without_server(host: str, *, ended_by_signal: bool, recreated: bool = False, given_up: str) -> RunDecision:
    """The decision of a node that lost its connection to node 0, or that node 0 closed; `recreated` if all of them are
    created again where they end to be resumed. `given_up` is why node 0 counts this node as lost, "" if it does not."""
    why = f"the first node ({host}) is lost, and with it the run; the same command starts it again"
    if given_up:
        why = f"the first node ({host}) counts this one as lost: it {given_up}; the same command joins again"
    elif ended_by_signal:
        why = f"the first node ({host}) was ended by a signal"
    elif recreated:
        why = f"the first node ({host}) is lost; the run resumes from its last checkpoint when all nodes are back"
    code = EXIT_RESUME if ended_by_signal or given_up or recreated else EXIT_TOOL_FAILED
    cause = "" if ended_by_signal else NODE_LOST
    return RunDecision(action="stop", exit_code=code, why=why, fallback=MemoryFallback(), cause=cause)


def format_nodes(nodes: list[int], hosts: Mapping[int, str]) -> str:
    """ "node 2 (gpu03)", "nodes 1, 2 (gpu03)": host names where known; of many the first few."""
    shown = [f"{node} ({hosts[node]})" if node in hosts else str(node) for node in nodes[:_MOST_NAMED]]
    more = f" and {len(nodes) - _MOST_NAMED} more" if len(nodes) > _MOST_NAMED else ""
    return f"node{'s' if len(nodes) > 1 else ''} {', '.join(shown)}{more}"


def decision_from_dict(found: Mapping[str, Any]) -> RunDecision:
    """The inverse of `asdict`; TypeError or KeyError for anything else."""
    return RunDecision(**{**found, "fallback": MemoryFallback(**found["fallback"]), "nodes": tuple(found["nodes"])})


def shared_key(*, run: str, secret: str | None) -> bytes:
    """The key that authenticates the supervisors of one run to one another.

    `secret` is DSRUN_SECRET, the same random string on all nodes. Without it the key is derived from `run`, which all
    nodes know (SLURM job and step, or address and port): it rejects other runs that happen to use the same port, but no
    attacker. torch's own store does neither."""
    # Neither part can hold a zero byte, so that no two pairs of them are one text.
    return hashlib.sha256(f"dsrun coordinator\0{run}\0{secret or ''}".encode()).digest()


HANDSHAKE_TIMEOUT_S = 60.0
"""Seconds in which a new connection must authenticate."""

ANOTHER_RUN = "it belongs to another run, or has another DSRUN_SECRET"
# A second supervisor for a node is rejected if the first was heard from within this time; later it replaces it.
_REPLACE_AFTER_S = 3.0


@dataclass
class Peer:
    """The supervisor of another node. `waiting` until it takes part in an attempt, for which it is `ready` when its
    ranks can start at once."""

    node: int
    host: str
    connection: PeerConnection
    waiting: bool = True
    ready: bool = False


def still_taken(message: PeerMessage, peers: Mapping[int, Peer]) -> str | None:
    """Which supervisor already is the node that the sender wants to be; None if it may be it."""
    current = peers.get(int(message["node"]))
    if current and time.monotonic() - current.connection.last_received < _REPLACE_AFTER_S:
        return f"{current.host} is node {current.node} already"
    return None


def reject_reason(challenge: str, message: PeerMessage, *, key: bytes, nodes: int, workers: int | None) -> str | None:
    """Why the supervisor that sent `message` cannot join a run on `nodes` machines; None if it can.

    A sender without the key learns only that it does not have it."""
    node, their_nodes, version = (message.get(name) for name in ("node", "nodes", "version"))
    expected = hmac_digest(key, "follower", challenge, node, their_nodes)
    if not digests_match(message.get("proof"), expected):
        return ANOTHER_RUN
    if their_nodes != nodes:
        return f"it was started for {their_nodes} nodes, the first one for {nodes}"
    if not isinstance(node, int) or not 1 <= node < nodes:
        return f"node {node} is out of range"
    if version != __version__:
        return f"it has dsrun {version}, the first node {__version__}"
    # The global batch is that of all nodes, whichever are there, only where each has as many ranks.
    if workers is not None and message.get("workers") != workers:
        return f"it would start {message.get('workers')} ranks, the first node {workers}: --elastic needs as many"
    return None
