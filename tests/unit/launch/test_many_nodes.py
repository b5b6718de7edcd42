"""A thousand nodes: all of them join, and all of them receive the decision."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsrun.launch.coordinator.messages import NodeResult, shared_key
from dsrun.launch.coordinator.server import CoordinatorServer
from dsrun.launch.coordinator.transport import allow_open_files, listen
from tests.ports import free_ports
from tests.unit.launch.local_cluster import stop

NODES = 1024
JOIN_CPU_S = 3
DECIDE_CPU_S = 2
"""docs/architecture.md. CPU seconds of node 0, which other load on this machine does not change."""


@pytest.fixture
def many_files():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] not in (resource.RLIM_INFINITY,) and before[1] < NODES + 512:
        pytest.skip(f"the hard limit of open files is {before[1]}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_coordinator_of_1024_nodes(many_files):
    allow_open_files(NODES)
    port = free_ports()
    key = shared_key(run="test", secret="word")
    server = CoordinatorServer(listen("127.0.0.1", port), NODES, key, run_info={"output": "runs/x"}, timeout_s=100)
    argv = [sys.executable, "-m", "tests.unit.launch.many_followers", str(port), str(NODES)]
    with subprocess.Popen(argv, cwd=Path(__file__).parents[3], stdout=subprocess.PIPE, text=True) as followers:
        try:
            began = time.process_time()
            server.gather()
            joined = time.process_time()
            decision = server.report_and_wait(NodeResult(node=0, ok=True), decide)
            assert followers.stdout.readline() == "decided\n"
            decided = time.process_time()
        finally:
            server.close()
            followers.kill()
    assert decision.exit_code == 3
    assert joined - began <= JOIN_CPU_S
    assert decided - joined <= DECIDE_CPU_S


def decide(ends):
    assert [end.node for end in ends] == list(range(NODES))
    return stop(3)


def test_soft_limit_of_open_files_is_raised_as_far_as_allowed(many_files):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    allow_open_files(4)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 1024
    allow_open_files(NODES)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (NODES + 512, hard)
