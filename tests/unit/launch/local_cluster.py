"""Coordinators over real sockets for tests: one process as all nodes, and processes that can be killed or stopped."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dsrun.launch.context import LocalLauncher
from dsrun.launch.coordinator.messages import shared_key
from dsrun.launch.coordinator.rendezvous import join
from dsrun.launch.coordinator.server import CoordinatorServer
from dsrun.launch.coordinator.transport import listen
from dsrun.launch.memory_fallback import MemoryFallback
from dsrun.launch.supervisor.policy import AttemptFailure, RunDecision
from tests.ports import free_ports

KEY = shared_key(run="test", secret="word")
FAILED = AttemptFailure(cause="rank_killed", rank=1, exit_code=-9, message="rank 1 was killed", step=7)
NEVER = 1e9
HANDSHAKE_TIMEOUT_S = 120.0

# A node of its own: says when it takes part, and then what it is told.
NODE = """
import sys, time
from dsrun.launch.coordinator.messages import NodeResult, shared_key
from dsrun.launch.context import LocalLauncher
from dsrun.launch.coordinator.rendezvous import join
host, port, node, nodes, ok = sys.argv[1], *map(int, sys.argv[2:])
key = shared_key(run="test", secret="word")
place = LocalLauncher(how="a test", node=node, nodes=nodes, host=host, port=port - 1)
coordinator = join(place, name=f"machine-{node}", key=key)
coordinator.gather()
print("began", coordinator.attempt, flush=True)
while not ok and not coordinator.check():
    time.sleep(0.01)
print("over" if coordinator.check() else "ended", flush=True)
decision = coordinator.report_and_wait(NodeResult(node=node, ok=bool(ok)), None)
print(decision.action, decision.exit_code, decision.why, flush=True)
coordinator.close()
"""


def restart(why="again"):
    return RunDecision(action="restart", exit_code=1, wait_s=0.0, why=why, fallback=MemoryFallback(halvings=2))


def stop(code=3):
    return RunDecision(action="stop", exit_code=code, wait_s=0.0, why="enough", fallback=MemoryFallback(offload="cpu"))


def until(condition):
    end = time.monotonic() + HANDSHAKE_TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


class LocalCluster:
    """Coordinators in one process, closed at the end; `open(3)` are the leader and two followers, gathered."""

    def __init__(self):
        self.host = "127.0.0.1"
        self.port = free_ports()
        self.coordinators = []
        self.children = []

    def leader(self, nodes, **options):
        options = {"run_info": {"output": "runs/x"}, "timeout_s": HANDSHAKE_TIMEOUT_S, **options}
        return self._kept(CoordinatorServer(listen(self.host, self.port), nodes, KEY, **options))

    def place(self, node, nodes, **options):
        return LocalLauncher(how="a test", node=node, nodes=nodes, host=self.host, port=self.port - 1, **options)

    def follower(self, node, nodes, *, key=KEY, timeout_s=HANDSHAKE_TIMEOUT_S, **options):
        place = self.place(node, nodes, **options)
        return self._kept(join(place, name=f"machine-{node}", key=key, timeout_s=timeout_s))

    def open(self, nodes, **options):
        leader = self.leader(nodes, **options)
        recreated = options.get("recreated", False)
        followers = [self.follower(node, nodes, recreated=recreated) for node in range(1, nodes)]
        for coordinator in (leader, *followers):
            coordinator.gather()
        return leader, *followers

    def process(self, node, nodes, *, ok=False):
        argv = [sys.executable, "-c", NODE, self.host, str(self.port), str(node), str(nodes), str(int(ok))]
        root = str(Path(__file__).parents[3])
        child = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": root}, stdout=subprocess.PIPE, text=True)
        self.children.append(child)
        return child

    def _kept(self, coordinator):
        self.coordinators.append(coordinator)
        return coordinator

    def close(self):
        for coordinator in self.coordinators:
            coordinator.close()
        for child in self.children:
            child.kill()
            child.wait()
            child.stdout.close()


def report_all(coordinators, ends, decide):
    """All coordinators report at once, as the machines of a cluster do; `decide` is the first node's."""

    def report_and_wait(coordinator, ended):
        return coordinator.report_and_wait(ended, decide if coordinator.node == 0 else None)

    with ThreadPoolExecutor(len(coordinators)) as pool:
        return list(pool.map(report_and_wait, coordinators, ends))
