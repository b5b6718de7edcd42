"""`python -m bench.scale_nodes PORT NODES FIRST END`: nodes FIRST to END - 1 of a simulated run, each with the
coordinator of a real supervisor, its thread and its socket, and no ranks.

Each line on stdin, a word and a node, is done by all of them, and answered on stdout by the time when the last one had:
`ready`, `rendezvous`, `fail NODE` (an attempt that the ranks of NODE fail, to its decision; of -1, one that loses
nodes, which come back), `stop NODE` (asks for a stop, until all know) and `end`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from operator import methodcaller

from dsrun.launch.context import LocalLauncher
from dsrun.launch.coordinator.client import CoordinatorClient, FirstNodeLeft
from dsrun.launch.coordinator.messages import NodeResult, lost_node, shared_key
from dsrun.launch.coordinator.rendezvous import join
from dsrun.launch.coordinator.transport import allow_open_files
from dsrun.launch.supervisor.policy import RunDecision
from dsrun.runs.heartbeat import StopRequest

KEY = shared_key(run="scale", secret="word")
LIMIT_S = 120.0
_LOOK_S = 0.25
_JOINS = 10


class SimulatedNode:
    """Node `node` of `nodes`; node 0 is at `port`. What a supervisor does when it comes to it, one after another."""

    coordinator: CoordinatorClient

    def __init__(self, port: int, node: int, nodes: int) -> None:
        self.node = node
        self._place = LocalLauncher(
            how="simulated", node=node, nodes=nodes, host="127.0.0.1", port=port - 1, recreated=True
        )

    def rendezvous(self, _node: int = 0) -> None:
        """Until node 0 lets an attempt begin; a cut connection is made again, as a new supervisor does.

        Raises FirstNodeLeft after _JOINS cut ones.
        """
        for left in reversed(range(_JOINS)):
            self.coordinator = join(self._place, name=f"n{self.node}", key=KEY, timeout_s=LIMIT_S, notify=str)
            with suppress(*([FirstNodeLeft] if left else [])):
                self.coordinator.gather()
                return

    def fail(self, node: int) -> None:
        if self.node != node:
            until(self.coordinator.check)
        if self._report(lost_node(self.node, "a host", "has failed", cause="rank_killed")).action == "stop":
            self.coordinator.close()  # cut off
            self.rendezvous()

    def stop(self, node: int) -> None:
        if self.node == node:
            self.coordinator.announce_stop(StopRequest.now("SIGTERM"))
        until(lambda: self.coordinator.stop_requested() is not None)

    def ready(self, _node: int) -> None:
        """Nothing: it has started."""

    def end(self, _node: int) -> None:
        self._report(NodeResult(node=self.node, ok=True, interrupted=True))
        self.coordinator.close()

    def _report(self, ended: NodeResult) -> RunDecision:
        return self.coordinator.report_and_wait(ended, no_decision)


def no_decision(_ends: list[NodeResult]) -> RunDecision:
    raise AssertionError("node 0 decides")


def until(condition: Callable[[], bool]) -> None:
    """Raises TimeoutError after LIMIT_S."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing happened for {LIMIT_S:g} s")
        time.sleep(_LOOK_S)


def main(port: int, nodes: int, first: int, end: int) -> None:
    allow_open_files(4 * (end - first))
    simulated = [SimulatedNode(port, node, nodes) for node in range(first, end)]
    with ThreadPoolExecutor(len(simulated)) as pool:
        for line in sys.stdin:
            word, node = line.split()
            list(pool.map(methodcaller(word, int(node)), simulated))
            print(time.time(), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
