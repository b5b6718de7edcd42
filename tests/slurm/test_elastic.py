"""--elastic: a job goes on without a node that is lost, by the batches of an undisturbed run, and gets another one."""

from __future__ import annotations

import pytest

from dsrun.runs.records import read_records

# Whether a signal that a halted process will get is waiting: SIGUSR1 is the tenth bit from the right.
PENDING = (
    'for pid; do read -r _ mask < <(grep ^ShdPnd "/proc/$pid/status"); (( 0x$mask & 0x200 )) && exit; done; exit 1'
)


@pytest.fixture
def train(start):
    """Starts a training on three nodes; with `--elastic 2:3` two are enough."""

    def training(cwd, *options):
        return start(
            cwd,
            *("--nodes", 3),
            *options,
            train=["--global-batch-size", 12, "--micro-batch-size", 4, "--learning-rate", "1e-4"],
        )

    return training


# Trainings are halted far from a checkpoint, each seventh step: while one is saved nobody is asked to leave.


def events(training, kind):
    return [row for row in read_records(training.folder.events) if row["kind"] == kind]


def is_asked_to_leave(training, ada):
    """Whether halted ranks are to save and leave, for a node that has joined."""
    return any(
        ada.run("bash", "-c", PENDING, "bash", *pids, machine=name, check=False).returncode == 0
        for name, pids in training.workers().items()
    )


def test_spare_node_joins_while_the_others_train(cluster, ada, train, place):
    training = train(place, "--elastic", "2:3", "--spare", 1)
    training.freeze_at(8)
    _, _, lost, spare = training.job.machines()
    cluster.machines[lost].power_off()
    try:
        training.thaw()
        training.job.until(lambda: len(events(training, "training")) == 2, "training again")
        [reduced] = events(training, "nodes_reduced")
        assert (reduced["nodes"], reduced["gone"]) == (2, [2])
        assert (reduced["micro_batch"], reduced["accumulation"]) == (3, 2)
        training.freeze_at(15)
        training.job.until(lambda: is_asked_to_leave(training, ada), "asked to leave for the spare node")
        assert f"node 2: again on {spare}" in training.job.log
        training.thaw()
        training.job.wait_for("COMPLETED")
    finally:
        cluster.machines[lost].power_on()
        cluster.wait_until_ready()
    assert training.job.restarts == 0
    assert [row["world_size"] for row in events(training, "start")] == [3, 2, 3]
    assert [row["back"] for row in events(training, "nodes_restored")] == [[2]]
    undisturbed = train(ada.folder("three-nodes"))
    undisturbed.job.wait_for("COMPLETED")
    assert training.losses == pytest.approx(undisturbed.losses, rel=1e-6)


def test_node_whose_supervisor_died_gets_another(ada, train, place):
    training = train(place, "--elastic", "2:3")
    training.freeze_at(8)
    _, _, lost = training.job.machines()
    ada.run("pkill", "-KILL", "-f", "dsrun launch --elastic", machine=lost)
    training.thaw()
    training.job.until(lambda: len(events(training, "training")) == 2, "training again")
    training.freeze_at(15)
    training.job.until(lambda: is_asked_to_leave(training, ada), "asked to leave for the node")
    training.thaw()
    training.job.until(lambda: events(training, "nodes_restored"), "whole again")
    assert f"node 2: again on {lost}" in training.job.log
    training.job.wait_for("COMPLETED")
    assert training.job.restarts == 0


def test_job_with_too_few_nodes_left_is_requeued(cluster, ada, train, place):
    training = train(place, "--elastic", "2:3")
    training.freeze_at(8)
    _, *lost = training.job.machines()
    for name in lost:
        cluster.machines[name].power_off()
    try:
        training.thaw()
        training.job.wait_for_restart()
    finally:
        for name in lost:
            cluster.machines[name].power_on()
        cluster.wait_until_ready()
    training.job.wait_for("COMPLETED")
    assert [row["cause"] for row in events(training, "failure")] == ["node_lost", "node_lost"]
    assert len(events(training, "requeue")) == 1
    undisturbed = train(ada.folder("too-few-nodes"))
    undisturbed.job.wait_for("COMPLETED")
    assert training.losses == pytest.approx(undisturbed.losses, rel=1e-6)


@pytest.mark.parametrize("options", [("--elastic", "2:3"), ("--spare", 1)], ids=lambda options: options[0])
def test_job_whose_first_node_is_lost_is_requeued_by_another(cluster, ada, train, place, options):
    """That node ran the batch shell, which requeues after any other loss; SLURM keeps the job, as --no-kill asks."""
    training = train(place, *options)
    training.freeze_at(8)
    first = training.job.machines()[0]
    cluster.machines[first].power_off()
    try:
        training.thaw()
        training.job.until(lambda: events(training, "requeue"), "requeued")
    finally:
        cluster.machines[first].power_on()
        cluster.wait_until_ready()
    training.job.wait_for("COMPLETED")
    assert training.job.restarts == 1
    assert len(events(training, "requeue")) == 1
