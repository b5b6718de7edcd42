"""What jobs leave on the nodes' own disks, in /tmp and /dev/shm: what the next job uses again, and nothing else."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.slurm.jobs import ENDED

PROGRAM = """
import os, time
from pathlib import Path
import torch.distributed as dist
from torch.utils.cpp_extension import load
dist.init_process_group("gloo")
assert load("tiny_op", "tiny.cpp").f() == 3
file = Path(os.environ["TORCH_EXTENSIONS_DIR"], "tiny_op", "tiny_op.so")
print("built", os.environ["SLURMD_NODENAME"], file, file.stat().st_mtime_ns, flush=True)
while os.path.exists(os.environ["HOLD"]):
    time.sleep(0.1)
dist.barrier()
dist.destroy_process_group()
"""
OP = """
#include <Python.h>
static PyObject* f(PyObject*, PyObject*) { return PyLong_FromLong(3); }
static PyMethodDef methods[] = {{"f", f, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "tiny_op", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_tiny_op() { return PyModule_Create(&module); }
"""
WAITS = """
import os, time
print("waits", flush=True)
while os.path.exists("hold"):
    time.sleep(0.1)
"""
KEPT = re.compile(
    r"/tmp/dsrun-20001(/compiled-[0-9a-f]{12}(/\.in-use|/(triton|inductor|extensions).*"
    r"|/alone-\d+(/\.in-use|/agent(/.*)?|/extensions.*)?)?)?"
)
PAIR = ("--nodes", 2, "--gpus-per-node", 0, "--nproc", 1, "--nodelist", "node[1-2]")


def lying(cluster):
    """What lies in /tmp and /dev/shm of the two nodes."""
    found = set()
    for node in ("node1", "node2"):
        words = cluster.command(["find", "/tmp", "/dev/shm", "-mindepth", "1", "-xdev"], machine=node)
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        # The home folders, which all machines share, are below the test's own /tmp.
        found |= {(node, line) for line in done.stdout.splitlines() if not line.startswith(str(cluster.root))}
    return found


@pytest.fixture
def leaves(cluster):
    """What has come since, but for what later jobs use."""
    before = lying(cluster)
    return lambda: sorted(each for each in lying(cluster) - before if not KEPT.fullmatch(each[1]))


@pytest.fixture
def submit(ada, place):
    """Starts the program, which compiles an operation, and waits there as long as the file `hold` is in its folder."""
    (place / "x.py").write_text(PROGRAM)
    (place / "tiny.cpp").write_text(OP)

    def begin(*options, hold="no"):
        return ada.submit(*PAIR, "--env", f"HOLD={hold}", *options, program=["x.py"], cwd=place)

    return begin


def built(job):
    """The files that its ranks have loaded, and when they were compiled."""
    return {tuple(line.split()[1:]) for line in job.log.splitlines() if line.startswith("built ")}


@pytest.mark.parametrize("options", [(), ("--no-supervise",)], ids=["supervised", "torchrun"])
def test_program_leaves_what_the_next_job_loads(cluster, submit, leaves, options):
    """Which compiles nothing, and does not wait for the lock of a build that was killed."""
    before = lying(cluster)
    first = submit(*options)
    first.wait_for("COMPLETED")
    assert leaves() == []
    compiled = built(first)
    assert len(compiled) == 2
    for node, file, _ in compiled:
        words = cluster.command(["touch", file.replace("tiny_op.so", "lock")], machine=node)
        subprocess.run(words, check=True)
    second = submit(*options)
    second.wait_for("COMPLETED")
    assert built(second) == compiled
    assert leaves() == []
    # Of torch's agent, which removes none of its folders, each node has those of the last job.
    agents = [node for node, name in lying(cluster) - before if re.search(r"/agent/[^/]+$", name)]
    assert sorted(agents) == ([] if options == () else ["node1", "node2"])


def test_programs_at_the_same_time_load_their_own(submit, place, leaves):
    (place / "hold").touch()
    first = submit(hold="hold")
    first.until(lambda: len(built(first)) == 2, "compiled")
    second = submit()
    second.wait_for("COMPLETED")
    (place / "hold").unlink()
    first.wait_for("COMPLETED")
    assert {file for _, file, _ in built(first)}.isdisjoint(file for _, file, _ in built(second))
    assert leaves() == []


def test_training_leaves_nothing(start, place, leaves):
    start(place, "--nodelist", "node[1-2]", "--preflight").job.wait_for("COMPLETED")
    assert leaves() == []


def test_cancelled_training_leaves_nothing(ada, start, place, leaves):
    training = start(place, "--nodelist", "node[1-2]")
    training.freeze_at(3)
    ada.run("scancel", "--signal=KILL", training.job.id)
    training.job.until(lambda: not training.workers(), "without workers")
    training.job.wait_for("CANCELLED")
    training.job.until(lambda: leaves() == [], "cleaned up after")


def test_next_job_removes_what_the_loss_of_power_left(cluster, ada, place, leaves):
    """Both are programs without torch, on one node: what a training makes is below its supervisor's folder, too."""
    (place / "x.py").write_text(WAITS)
    (place / "hold").touch()
    options = ("--gpus-per-node", 0, "--nproc", 1, "--nodelist", "node2", "--no-requeue")
    lost = ada.submit(*options, program=["x.py"], cwd=place)
    lost.until(lambda: "waits" in lost.log, "begun")
    cluster.machines["node2"].power_off()
    cluster.machines["node2"].power_on()
    cluster.wait_until_ready()
    assert any("/tmp/dsrun-" in name for _, name in leaves())
    ada.run("scancel", "--signal=KILL", lost.id, check=False)
    lost.until(lambda: lost.state in ENDED, "ended")
    (place / "hold").unlink()
    ada.submit(*options, program=["x.py"], cwd=place).wait_for("COMPLETED")
    assert leaves() == []
