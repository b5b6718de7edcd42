"""The test tool itself: machines that differ where real ones do, and a cluster that is known to be ready."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

import pytest

from tests.slurm.cluster import CHECKOUT, Cluster
from tests.slurm.jobs import Person

KILLED_SESSION = """
import os, signal, sys
from tests.reaper import Reaper
from tests.slurm.cluster import Cluster, Options
Reaper()
Cluster(sys.argv[1]).up(Options(nodes=1))
print("up", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_cluster_nodes_are_isolated_and_jobs_unprivileged(ada, place):
    """Each node has a host name, processes and /tmp of its own, and jobs run as a normal user."""
    look = 'echo "$(hostname) $(id -u) $(ps -e | wc -l)"; echo "$(hostname)" >/tmp/mine; cat /tmp/mine >>"$1"'
    done = ada.run("srun", "--nodes=4", "bash", "-c", look, "look", place / "all", cwd=place)
    names, users, processes = zip(*(line.split() for line in done.stdout.splitlines()), strict=True)
    assert sorted(names) == ["node1", "node2", "node3", "node4"]
    assert set(users) == {"20001"}
    # Those of the host are not among them.
    assert all(int(number) < 20 for number in processes)
    disks = ada.cluster.root / "disk"
    assert {name: (disks / name / "tmp" / "mine").read_text().strip() for name in names} == {n: n for n in names}
    assert sorted((place / "all").read_text().split()) == sorted(names)


def test_cluster_users_can_import_this_checkout(ada):
    """Users see this checkout and its Python, wherever they lie."""
    where = ada.run("srun", sys.executable, "-c", "import dsrun, yaml; print(dsrun.__file__)").stdout
    assert where.strip() == str(CHECKOUT / "dsrun" / "__init__.py")


def test_cluster_ready_until_a_node_is_off(cluster, ada):
    """A cluster with several partitions counts each node once, and is ready until one is off; then its neighbours,
    who have just talked to it, reach it again."""
    listed = subprocess.run(["sinfo", "-hN"], env=cluster.env, capture_output=True, text=True, check=True).stdout
    assert len(listed.splitlines()) > len(cluster.node_states()) == 4
    assert cluster.ready()
    ada.run("srun", "--nodes=4", "true")
    cluster.machines["node4"].power_off()
    assert not cluster.ready()
    cluster.machines["node4"].power_on()
    cluster.wait_until_ready()
    ada.run("srun", "--nodes=4", "true")


def test_cluster_ends_with_killed_session():
    """No machine outlives a test session that was killed."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as root:
        words = [sys.executable, "-c", KILLED_SESSION, root]
        done = subprocess.run(words, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=False)
        assert done.stdout == "up\n"
        cluster = Cluster(root)
        end = time.monotonic() + 60
        try:
            while any(machine.process for machine in cluster.machines.values()):
                assert time.monotonic() < end
                time.sleep(0.1)
        finally:
            cluster.down()


def test_accounting_has_finished_jobs(accounting):
    ada = Person(accounting, "ada", accounting.root / "home" / "ada")
    ada.run("srun", "--job-name=remember me", "--gpus-per-node=a100:2", "true")
    columns = "--format=JobName%30,State,AllocTRES%80"
    said = ""
    # The controller tells the database when it finds the time.
    end = time.monotonic() + 300
    while "COMPLETED" not in said and time.monotonic() < end:
        time.sleep(0.2)
        said = ada.run("sacct", "--noheader", "--parsable2", "--allocations", columns).stdout
    assert "remember me|COMPLETED|" in said
    assert "gres/gpu=2" in said


@pytest.mark.parametrize(
    "command", [["tests.slurm.cluster", "--dir", "cluster", "up"], ["tests.slurm"]], ids=["cluster", "tests"]
)
def test_cluster_needs_root(ada, command):
    """Who may not make a cluster is told so."""
    done = ada.run(sys.executable, "-m", *command, check=False, cwd=CHECKOUT)
    assert done.returncode == 4
    assert "needs root" in done.stderr
