"""`dsrun doctor` between the nodes of a cluster, and before a job's workers start."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.slurm.cluster import CHECKOUT, Cluster

OTHER = "/tmp/other-version"
"""Each machine has a /tmp of its own: on one of them this folder makes DeepSpeed seem to be another version."""
OTHER_FIRST = f"PYTHONPATH={OTHER}:{CHECKOUT}"


def on(cluster: Cluster, machine: str, *words: str) -> None:
    subprocess.run(cluster.command(words, machine=machine), check=True, capture_output=True)


@pytest.fixture
def different(cluster) -> Iterator[str]:
    """The name of a node that has another version of DeepSpeed."""
    info = f"{OTHER}/deepspeed-0.1.0.dist-info"
    text = "Metadata-Version: 2.1\\nName: deepspeed\\nVersion: 0.1.0\\n"
    on(cluster, "node2", "sh", "-c", f"mkdir -p {info} && printf '{text}' >{info}/METADATA")
    yield "node2"
    on(cluster, "node2", "rm", "-r", OTHER)


@contextmanager
def cut_off(cluster: Cluster, name: str, peers: list[str]) -> Iterator[None]:
    """Within, a node has no route to some others; the controller and the first node still reach it."""
    routes = [f"{cluster.machines[peer].address}/32" for peer in peers]
    for route in routes:
        on(cluster, name, "ip", "route", "add", "unreachable", route)
    try:
        yield
    finally:
        for route in routes:
            on(cluster, name, "ip", "route", "del", "unreachable", route)


def test_doctor_over_four_nodes_names_the_different_and_the_unreachable(cluster, ada, different):
    words = ("env", OTHER_FIRST, "python", "-m", "dsrun", "doctor", "--format", "json")
    with cut_off(cluster, "node4", ["node2", "node3"]):
        done = ada.run("srun", "--nodes=4", "--ntasks-per-node=1", "--gpus-per-node=0", *words, check=False)
    assert done.returncode == 3, done.stderr
    found = json.loads(done.stdout)
    assert [each["host"] for each in found["nodes"]] == ["node1", "node2", "node3", "node4"]
    messages = {}
    for each in found["findings"]:
        messages.setdefault(each["code"], []).append(each["message"])
    assert any("node 3 (node4) cannot reach node 1 (node2)" in each for each in messages["tcp_unreachable"])
    assert any("node 2 (node3) cannot reach node 3 (node4)" in each for each in messages["tcp_unreachable"])
    assert any("0.1.0 on node2" in each for each in messages["nodes_differ"])
    assert set(found["exclude"]) == {"node4", different}
    # The others were tested all together, over the network between them.
    (together,) = [group for group in found["groups"] if group["phase"] == "all"]
    assert together["units"] == ["node1", "node2", "node3"]
    assert together["ok"]
    assert together["busbw"]["all_reduce"] > 0


def test_job_with_preflight_goes_on_without_the_node_that_fails(ada, place, different):
    """The first start names the node and requeues the job; the second one passes and runs the program."""
    options = ("--nodes", 3, "--gpus-per-node", 0, "--nproc", 1, "--preflight", "--env", OTHER_FIRST)
    program = ("python", "-c", "import socket; open('ran-' + socket.gethostname(), 'w')")
    job = ada.submit(*options, program=program, cwd=place)
    job.wait_for_restart()
    job.until(lambda: different in job.fact("ExcNodeList"), f"told to leave out {different}")
    job.wait_for("COMPLETED")
    assert job.restarts == 1
    assert f"preflight: {different} failed: requeued without {different}" in job.log
    assert "DeepSpeed differs between the nodes" in job.log
    assert sorted(file.name for file in place.glob("ran-*")) == ["ran-node1", "ran-node3", "ran-node4"]
