"""A cluster for the session, with a tiny model and its data on its claim."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.integration.conftest import make_training
from tests.kubernetes.cluster import Cluster
from tests.slurm.packages import FOR_PODS, missing

CLAIM = "dsrun-runs"


@pytest.fixture(scope="session")
def cluster():
    if reason := missing(FOR_PODS):
        pytest.exit(f"the tests in pods cannot run: {reason}", returncode=4)
    # Not in pytest's own folder, which other users may not pass.
    root = Path(tempfile.mkdtemp(prefix="pods-"))
    root.chmod(0o755)
    cluster = Cluster(root)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


@pytest.fixture(scope="session")
def tiny(cluster):
    """The flags of `dsrun train`, as the pods see the files, for a tiny model."""
    make_training(cluster.claim(CLAIM) / "tiny")
    return [
        "--model", "/runs/tiny/t5", "--train-file", "/runs/tiny/train.jsonl", "--validation-split-percentage", "0",
        "--bf16", "false", "--learning-rate", "0.01", "--global-batch-size", "8", "--micro-batch-size", "2",
        "--logging-steps", "1", "--zero", "2",
    ]  # fmt: skip


@pytest.fixture(scope="session")
def job(cluster):
    """Starts a job: `job("name", "--nodes", "4", program=[…])` is `dsrun render-k8s … | kubectl apply -f -`."""
    started = []

    def start(name, *options, program):
        words = ["render-k8s", "--name", name, "--gpus-per-node", "0", "--shm", "64Mi", *options, "--", *program]
        command = [sys.executable, "-m", "dsrun", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        started.append(cluster.apply(done.stdout))
        return started[-1]

    yield start
    for each in started:
        each.close()
