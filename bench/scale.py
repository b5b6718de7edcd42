"""What a run on 1,024 nodes costs its supervisors: join, decision, loss of nodes and stop, by the real coordinator of
every node, on loopback; and what its status files and their reader cost (bench/scale_status.py).

Once on a network as it should be, and once on one that delays and loses packets (bench/scale_network.py). All nodes
share the cores of this machine: wall times are upper limits. The CPU time of node 0 is what a real node 0 spends.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from bench.cpu_clock import cpu_seconds
from bench.processes import LimitedProcess
from bench.scale_nodes import KEY, LIMIT_S, until
from bench.scale_status import show_status
from dsrun.launch.coordinator.messages import NodeResult, lost_node
from dsrun.launch.coordinator.server import CoordinatorServer
from dsrun.launch.coordinator.transport import allow_open_files, listen
from dsrun.launch.memory_fallback import MemoryFallback
from dsrun.launch.supervisor.policy import RunDecision
from tests.ports import free_ports

NODES = 1024
PROCESSES = 4
"""The nodes but node 0 are in so many processes."""
LOST = 8
QUIET_S = 10.0
JOIN_S, DECIDE_S = 3.0, 2.0
"""Limits on a sound network, in seconds of wall time."""


def main() -> bool:
    """Print the costs; whether the limits hold."""
    allow_open_files(4 * NODES)
    load, cores = os.getloadavg()[0], os.cpu_count()
    print(f"load {load:.1f} on {cores} cores, which the nodes share: the times grow with it")
    with SimulatedRun(slow=False) as run:
        joined, decided = run.show()
    with SimulatedRun(slow=True) as run:
        run.show()
    holds = joined <= JOIN_S and decided <= DECIDE_S
    print(f"sound: joined within {JOIN_S:g} s, decided within {DECIDE_S:g} s: {'yes' if holds else 'NO'}")
    with tempfile.TemporaryDirectory(prefix="scale-") as scratch:
        return show_status(Path(scratch), NODES) and holds


class SimulatedRun(ExitStack):
    """Node 0 in this process and the others in processes of their own, all ended with the `with`."""

    def __init__(self, *, slow: bool) -> None:
        super().__init__()
        print(f"{NODES:,} nodes, {'delays of up to 50 ms, 2% of packets lost' if slow else 'a sound network'}:")
        port = free_ports()
        listener = listen("127.0.0.1", port)
        self.server = CoordinatorServer(listener, NODES, KEY, run_info={"output": "runs/x"}, recreated=True, notify=str)
        self.callback(self.server.close)
        if slow:
            port = int(self._process("scale_network", port).line("stdout"))
        share = -(-(NODES - 1) // PROCESSES)
        parts = [(first, min(first + share, NODES)) for first in range(1, NODES, share)]
        self.others = [self._process("scale_nodes", port, NODES, *part) for part in parts]

    def _process(self, name: str, *words: int) -> LimitedProcess:
        argv = [sys.executable, "-m", f"bench.{name}", *map(str, words)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        return self.enter_context(LimitedProcess(argv, what=name, limit_s=10 * LIMIT_S, **pipes))

    def show(self) -> tuple[float, float]:
        """Print what each part costs; wall seconds of the join and of the decision."""
        for each in self.others:
            each.write("ready 0\n")
            each.line("stdout")
        joined = self._part("all join", "rendezvous 0", self.server.gather)
        self._part(f"{QUIET_S:g} s of an attempt", "ready 0", lambda: time.sleep(QUIET_S))
        sockets = [_sockets(each.pid) / NODES * PROCESSES for each in self.others]
        print(f"  sockets: node 0 {_sockets(os.getpid()):,}, each other node {max(sockets):.1f}")
        failed = NODES // 2
        decided = self._part("ranks of a node fail: all have the decision", f"fail {failed}", self._fail)
        self._part(f"{LOST} nodes are lost: they are back, all have the decision", "fail -1", self._lose)
        self._part("a node is asked to stop: all know", f"stop {failed}", lambda: until(self._is_asked))
        self._part("all end", "end 0", lambda: self._report(ok=True))
        return joined, decided

    def _part(self, what: str, word: str, of_node_0: Callable[[], object]) -> float:
        """Have all nodes do it, and print the costs; wall seconds until the last one was done."""
        own, began = time.process_time(), time.time()
        before = sum(cpu_seconds(each.pid) for each in self.others)
        for each in self.others:
            each.write(f"{word}\n")
        of_node_0()
        seconds = max(time.time(), *(float(each.line("stdout")) for each in self.others)) - began
        others = (sum(cpu_seconds(each.pid) for each in self.others) - before) / NODES
        cpu = f"CPU of node 0 {time.process_time() - own:.2f} s, of each other {1e3 * others:.1f} ms"
        print(f"  {what}: {seconds:.2f} s; {cpu}", flush=True)
        return seconds

    def _fail(self) -> None:
        until(self.server.check)
        self._report(ok=False)

    def _lose(self) -> None:
        for peer in list(self.server._peers.values())[:LOST]:
            peer.connection.sock.shutdown(socket.SHUT_RDWR)
        self._fail()

    def _report(self, *, ok: bool) -> None:
        ended = NodeResult(node=0, ok=True) if ok else lost_node(0, "a host", "ended its ranks", cause="rank_killed")
        action = "stop" if ok else "restart"
        decision = RunDecision(action=action, exit_code=1, wait_s=0.0, why="simulated", fallback=MemoryFallback())
        self.server.report_and_wait(ended, lambda _ends: decision)

    def _is_asked(self) -> bool:
        return self.server.stop_requested() is not None


def _sockets(pid: int) -> int:
    """Of a process of this user."""
    count = 0
    for each in list(Path(f"/proc/{pid}/fd").iterdir()):
        with suppress(FileNotFoundError):  # of the listing itself
            count += str(each.readlink()).startswith("socket:")
    return count
