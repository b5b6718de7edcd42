"""A cluster for the whole session, users on it, and tiny models and data for their jobs."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from dsrun.runs.folder import RunFolder
from tests.integration.conftest import make_training
from tests.slurm.cluster import Cluster
from tests.slurm.configuration import Options
from tests.slurm.jobs import Person, Training
from tests.slurm.packages import missing

GRACE_S = 120
PARTITIONS = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=REQUEUE",
    f"PartitionName=back Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime={GRACE_S}",
    f"PartitionName=doomed Nodes=ALL PriorityTier=1 PreemptMode=CANCEL GraceTime={GRACE_S}",
    "PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF",
    "Licenses=fluent:10",
    "PartitionName=brief Nodes=ALL MaxTime=10",
)
STEPS = 60
"""Of a run that is to be interrupted; long enough to look at it, and for a look at all machines, on two busy cores."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """All but the demo's trainings take turns where CI runs a fifth: together they take half an hour of two cores."""
    if item.path.name != "test_training.py":
        item.add_marker(pytest.mark.exhaustive)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each worker begins with its share of the tests that wait for minutes, the first one with the demo's trainings.

    `--dist worksteal` gives each of them as many tests, in this order, and moves the last ones of a worker to one that
    has nothing left: tests of one file may run in several workers, and come back to one that left the file before. So a
    fixture that makes a folder has the scope of the session.
    """
    trained = [item for item in items if item.path.name == "test_training.py"]
    slow = [item for item in items if item.path.name == "test_interruptions.py"]
    rest = [item for item in items if item not in trained and item not in slow]
    total, workers = len(items), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = trained
    for worker in range(workers):
        items += slow[worker::workers]
        share = max(0, total * (worker + 1) // workers - len(items))
        items += rest[:share]
        del rest[:share]


@pytest.fixture(scope="session")
def cluster():
    """Four nodes with two GPUs each, all of them in each of several partitions."""
    yield from a_cluster(Options(nodes=4, gpus=("a100:2",), lines=PARTITIONS))


@pytest.fixture(scope="session")
def accounting():
    """Two nodes, and a database that knows what has run."""
    yield from a_cluster(Options(nodes=2, gpus=("a100:4", "none"), accounting=True))


def a_cluster(options: Options):
    """Up for as long as a fixture of its own is in use."""
    if reason := missing():
        pytest.exit(f"the tests on SLURM cannot run: {reason}", returncode=4)
    # Not in pytest's own folder, which other users may not pass.
    root = Path(tempfile.mkdtemp(prefix="slurm-"))
    root.chmod(0o755)
    cluster = Cluster(root)
    try:
        cluster.up(options)
        yield cluster
    finally:
        cluster.down()
        shutil.rmtree(root)


@pytest.fixture(scope="session")
def ada(cluster):
    """A normal user."""
    return Person(cluster, "ada", cluster.root / "home" / "ada")


@pytest.fixture
def place(ada, request):
    """A folder of ada's for this test."""
    return ada.folder("".join(c if c.isalnum() else "-" for c in request.node.name))


@pytest.fixture(scope="session")
def tiny(ada):
    """The flags of `dsrun train` that name a tiny model and its data, to be trained in fp32."""
    folder = make_training(ada.folder("tiny"))
    return [
        "--model", folder / "t5", "--train-file", folder / "train.jsonl", "--bf16", "false", "--learning-rate", "0.01",
        "--global-batch-size", "32", "--micro-batch-size", "2", "--logging-steps", "1",
    ]  # fmt: skip


@pytest.fixture(scope="session")
def start(ada, tiny):
    """Starts a training on two nodes, one rank each: `start(folder, "--partition", "back", train=["--zero", "3"])`."""

    def training(cwd: Path, *options: object, train: list[object] = ()) -> Training:
        # Halting ranks is how the tests keep a training waiting: the supervisor must not take it for a failure.
        flags = ["--zero", "2", "--max-steps", STEPS, "--save-steps", 7, "--hang-timeout", 0, *train]
        program = ["train", *tiny, *flags, "--output", cwd / "run"]
        job = ada.submit("--nodes", "2", "--gpus-per-node", "0", "--nproc", "1", *options, program=program, cwd=cwd)
        return Training(job, RunFolder(cwd / "run"))

    return training


@pytest.fixture(scope="session")
def undisturbed(ada, start):
    """The losses of a run that nothing interrupts."""
    training = start(ada.folder("undisturbed"))
    training.job.wait_for("COMPLETED")
    losses = training.losses
    assert sorted(losses) == list(range(1, STEPS + 1))
    return losses
