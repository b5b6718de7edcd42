"""One job of four pods from its first step to its end: each test goes on where the last one has left it."""

from __future__ import annotations

import pytest

from dsrun.runs.folder import RunFolder
from tests.kubernetes.conftest import CLAIM
from tests.kubernetes.training import Training

STEPS = 40


@pytest.fixture(scope="module")
def training(cluster, job, tiny):
    # Ranks that are halted must not count as hanging.
    flags = [*tiny, "--max-steps", STEPS, "--save-steps", 5, "--hang-timeout", 0]
    started = job("four", "--nodes", 4, program=["train", *flags])
    return Training(started, RunFolder(cluster.claim(CLAIM) / "four"))


def test_killed_pod_comes_back_and_joins(training):
    """The new pod has another address and the same index; the others have waited for it."""
    job = training.job
    training.halt_at(3)
    others = {index: pod for index, pod in job.pods.items() if index != 2}
    lost = job.pods[2]
    lost.kill()
    training.wait_for_start(2)
    assert job.codes() == [(2, 137)]
    assert job.pods[2].wiring.address != lost.wiring.address
    assert {index: job.pods[index] for index in others} == others
    (failure,) = training.events("failure")
    assert failure["cause"] == "node_lost"
    assert "node 2 (four-2)" in failure["message"]
    assert [start["attempt"] for start in training.events("start")] == [0, 1]


def test_evicted_pod_saves_and_all_resume(training):
    """SIGTERM to one pod saves once; all end with 75, come back, and go on from that checkpoint."""
    job = training.job
    training.halt_at(10)
    job.pods[1].end(disrupted=True)
    training.go_on()
    training.wait_for_start(3)
    assert sorted(job.codes()[1:]) == [(index, 75) for index in range(4)]
    (saved,) = training.events("signal")
    assert (saved["signal"], saved["signalled_host"]) == ("SIGTERM", "four-1")
    job.until(lambda: len(training.events("resume")) > 0, "resumed")
    assert training.events("resume")[-1]["step"] == saved["step"]


def test_loss_of_pod_0_makes_all_resume(training):
    """Pods that lose the first one end with 75, which does not count as a failure of theirs."""
    job = training.job
    training.halt_at(20)
    newest = max(step for step, _ in training.folder.checkpoints())
    before = len(training.events("resume"))
    job.pods[0].kill()
    training.wait_for_start(4)
    assert sorted(job.codes()[5:]) == [(0, 137), (1, 75), (2, 75), (3, 75)]
    assert all("the first node (four-0.four) is lost" in pod.log for pod in job.ended[5:] if pod.index)
    job.until(lambda: len(training.events("resume")) > before, "resumed")
    assert training.events("resume")[-1]["step"] == newest


def test_interrupted_job_completes(training):
    """It succeeds with every step made; killed pods alone count as failures."""
    job = training.job
    job.wait_for("Complete")
    assert sorted(job.codes()[9:]) == [(index, 0) for index in range(4)]
    assert job.failures == {2: 1, 0: 1}
    assert sorted(training.losses) == list(range(1, STEPS + 1))
    assert training.folder.finished.exists()
    # All pods that began together count as a start of the job.
    assert [start.get("requeue", 0) for start in training.events("start")] == [0, 0, 1, 2]


def test_pod_created_after_the_end_finishes_at_once(training):
    """A pod whose end the controller has not seen is created again, and waits for nobody."""
    job = training.job
    for index in (0, 3):
        pod = job.create(index)
        job.until(lambda pod=pod: pod.exit_code is not None, "over")
        assert pod.exit_code == 0, pod.log
        assert "the run in /runs/four has finished" in pod.log
    assert len(training.events("start")) == 4
