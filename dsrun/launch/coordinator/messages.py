"""The supervisors of all nodes: every attempt begins and ends on all of them, as the first node decides.

Node 0 listens on the port after the rendezvous'; the others connect to it. Each tells how its part of an attempt has
ended; when all have, node 0 decides what comes next, and all do the same. A node that is silent or gone is lost: its
place can be taken by a supervisor started anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from dsrun.errors import EXIT_RESUME, EXIT_TOOL_FAILED, DsrunError
from dsrun.launch.supervisor.policy import Decision, Failure, Remedy

Facts = Mapping[str, str]

GATHER_S = 600.0
"""Seconds that the nodes wait for one another at the start, and for a lost one that comes back."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a node's part of an attempt ended.

    `ok`: all its ranks left with exit code 0; `interrupted`: because they were told to. `failure` says why they did
    not.
    """

    node: int
    ok: bool
    interrupted: bool = False
    failure: Failure | None = None

    def as_dict(self) -> dict[str, Any]:
        """For a message."""
        return asdict(self)

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Ended:
        """The inverse. Raises TypeError and KeyError for what as_dict did not make."""
        failure = found["failure"]
        return cls(
            node=int(found["node"]),
            ok=bool(found["ok"]),
            interrupted=bool(found["interrupted"]),
            failure=Failure(**failure) if failure else None,
        )


Decide = Callable[[list[Ended]], Decision]


class Council(Protocol):
    """What a supervisor has to do with those of the other nodes. All times are the caller's own: nothing polls."""

    node: int
    nodes: int
    attempt: int
    """Number of the attempt to begin with: 0, and more on a node that comes back to a run it was lost from."""

    def check(self) -> bool:
        """Whether this node's attempt must end because another node's has failed, or that node is lost."""

    def announce_stop(self, name: str) -> None:
        """Tell all nodes that signal `name` asks the run to save and leave. A signal handler may call it."""

    def stop_asked(self) -> str | None:
        """The signal that was announced here or on another node, None while there was none."""

    def settle(self, ended: Ended, decide: Decide) -> Decision:
        """Report how the attempt ended here, wait for all nodes, and return what the first node decides.

        `decide` is called on the first node, with one `Ended` per node in their order. "restart" is returned when
        every node is there to begin again; after a stop was asked for anywhere it has become "stop".
        """

    def close(self) -> None:
        """Leave. The others do not take it for a loss after a decision to stop."""


class RendezvousError(DsrunError):
    """The nodes did not find one another in time (cause rendezvous_timeout)."""


class Stopped(DsrunError):
    """A signal came before the nodes were together: nothing was begun, nothing is lost."""

    exit_code = EXIT_RESUME


class Alone:
    """The council of a run on one machine."""

    node = 0
    nodes = 1
    attempt = 0

    def __init__(self) -> None:
        self._announced: str | None = None

    def check(self) -> bool:
        return False

    def announce_stop(self, name: str) -> None:
        self._announced = name

    def stop_asked(self) -> str | None:
        return self._announced

    def settle(self, ended: Ended, decide: Decide) -> Decision:
        return unless_stopped(decide([ended]), self._announced)

    def close(self) -> None:
        """Nobody is there to leave."""


def unless_stopped(decision: Decision, signal_name: str | None) -> Decision:
    """`decision`, but no restart once the run was asked to stop."""
    if decision.action == "stop" or signal_name is None:
        return decision
    why = f"{signal_name} came while the run was to be started again: the same command goes on from here"
    return replace(decision, action="stop", exit_code=EXIT_RESUME, wait_s=0.0, why=why)


def lost(node: int, host: str, *, silent: bool) -> Ended:
    """The end of a node that is not there any more."""
    how = (
        "did not answer any more" if silent else "left without a word: its supervisor or the machine has died"
    )
    failure = Failure(cause="node_lost", node=node, message=f"node {node} ({host}) {how}")
    return Ended(node=node, ok=False, failure=failure)


def departed(node: int, host: str) -> Ended:
    """The end of a node whose supervisor said good-bye before the run was over: somebody ended it."""
    failure = Failure(cause="interrupted", node=node, message=f"node {node} ({host}) was ended by a signal")
    return Ended(node=node, ok=False, failure=failure)


def without_leader(host: str, *, departed: bool) -> Decision:
    """What is left to do without the first node, which is lost, or said good-bye before the run was over."""
    why = f"the first node ({host}) is lost, and with it the run"
    if departed:
        why = f"the first node ({host}) was ended by a signal"
    code = EXIT_RESUME if departed else EXIT_TOOL_FAILED
    return Decision(action="stop", exit_code=code, wait_s=0.0, why=why, remedy=Remedy())


def nodes_named(nodes: list[int], hosts: Mapping[int, str]) -> str:
    """ "node 2 (gpu03)", "nodes 1, 2 (gpu03)": with the machines' names where they are known."""
    names = [f"{node} ({hosts[node]})" if node in hosts else str(node) for node in nodes]
    return f"node{'s' if len(names) > 1 else ''} {', '.join(names)}"


def decision_as_dict(decision: Decision) -> dict[str, Any]:
    """For a message."""
    return asdict(decision)


def decision_from_dict(found: Mapping[str, Any]) -> Decision:
    """The inverse. Raises TypeError and KeyError for what decision_as_dict did not make."""
    return Decision(**{**found, "remedy": Remedy(**found["remedy"])})


def shared_key(*, run: str, secret: str | None) -> bytes:
    """The key that the supervisors of one run show one another that they have.

    `secret` is DSRUN_SECRET, the same random word on all nodes, which keeps everybody else out. Without it the key
    follows from `run`, what all nodes know of the run (SLURM's job and step, or address and port), and keeps out
    other runs that got the same port by chance, but no one who wants to come in; neither does torch's own store.
    """
    return hashlib.sha256(f"dsrun council\0{run}\0{secret or ''}".encode()).digest()
