"""Whatever ends a job before its training has ended: a checkpoint, back into the queue, and the losses of an
undisturbed run. What the user cancels stays cancelled."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from dsrun.cli.monitor.sources import RunSource
from dsrun.diagnosis.run_diagnosis import of_run
from dsrun.monitoring.overview import runs_of
from dsrun.monitoring.prometheus.samples import samples
from dsrun.report.data import read_run
from dsrun.runs.folder import STALE_S
from dsrun.runs.reader import read_history
from dsrun.runs.tail import last_cause, last_record, progress
from tests.faults.hold import INJECT
from tests.slurm.cluster import CHECKOUT


def finishes(training, undisturbed):
    """The interrupted job finishes in its second start, and nothing shows that it had two."""
    job = training.job
    job.wait_for("COMPLETED")
    assert job.restarts == 1
    assert training.folder.finished.exists()
    assert training.events.count("resume") == 1
    assert training.events[-1] == "end"
    # Bit for bit, each step once.
    assert training.losses == undisturbed


def saved(training) -> None:
    """All ranks agreed on a checkpoint before they left: the second start went on from there."""
    assert "signal" in training.events


@pytest.fixture
def at_work(start, place):
    """Starts a training and halts it in the middle: `at_work("--partition", "back")`."""

    def begin(*options, train=()):
        training = start(place, *options, train=train)
        training.freeze_at(3)
        return training

    return begin


def test_time_limit_signal_saves_and_requeues(at_work, undisturbed):
    """The time limit announces itself, and the job goes on afterwards."""
    training = at_work("--time", "20", "--signal-lead", "60")
    job = training.job
    # slurmctld looks at limits every 30 s.
    job.update(EndTime="now+70")
    job.until(lambda: "received USR1" in job.log, "warned of its end")
    training.thaw()
    job.wait_for_restart()
    # The limit that was moved is that of the next start as well.
    job.update(TimeLimit="20")
    finishes(training, undisturbed)
    saved(training)


@pytest.mark.parametrize("target", [("--batch",), ()], ids=["batch", "steps"])
def test_usr1_to_batch_or_steps_saves_and_requeues(ada, at_work, undisturbed, target):
    """A signal to the batch script or to the steps saves and requeues."""
    training = at_work()
    ada.run("scancel", "--signal=USR1", *target, training.job.id)
    training.thaw()
    training.job.wait_for_restart()
    finishes(training, undisturbed)
    saved(training)


def test_scancel_does_not_requeue(ada, at_work):
    training = at_work()
    ada.run("scancel", training.job.id)
    training.job.wait_for("CANCELLED")
    training.job.until(lambda: not training.workers(), "without workers")
    assert training.job.restarts == 0
    assert not training.folder.finished.exists()


def test_scontrol_requeue_restarts_once(ada, at_work, undisturbed):
    training = at_work()
    ada.run("scontrol", "requeue", training.job.id)
    training.job.wait_for_restart()
    finishes(training, undisturbed)


@pytest.mark.parametrize("partition", ["back", "doomed"])
def test_preempted_job_saves_and_requeues(ada, at_work, undisturbed, partition):
    """SLURM alone would not put it back: not one that ends within its grace time, nor where the mode is CANCEL."""
    training = at_work("--partition", partition, "--exclusive")
    nodes = ",".join(training.job.machines())
    urgent = ada.sbatch(
        "#!/bin/bash\nsleep 1\n", "--partition=urgent", "--exclusive", f"--nodelist={nodes}", "--nodes=2"
    )
    # Preemption itself wakes the halted workers.
    training.job.wait_for_restart()
    urgent.wait_for("COMPLETED")
    finishes(training, undisturbed)
    saved(training)


@pytest.mark.parametrize("which", [0, 1], ids=["batch host", "other node"])
def test_node_failure_resumes_from_last_checkpoint(cluster, start, place, undisturbed, which):
    """A node that dies costs the steps since the last checkpoint."""
    training = start(place)
    training.freeze_at(8)
    lost = training.job.machines()[which]
    cluster.machines[lost].power_off()
    try:
        training.thaw()
        training.job.wait_for_restart()
        assert lost not in training.job.wait_for("RUNNING").machines()
        finishes(training, undisturbed)
    finally:
        cluster.machines[lost].power_on()
        cluster.wait_until_ready()


def test_spare_node_takes_the_place_of_a_lost_one(cluster, start, place, undisturbed):
    """The job goes on from the last checkpoint within the same start."""
    training = start(place, "--spare", "1")
    training.freeze_at(8)
    used, lost, spare = training.job.machines()
    assert set(training.workers()) == {used, lost}
    cluster.machines[lost].power_off()
    try:
        training.thaw()
        training.job.wait_for("COMPLETED")
        assert training.job.restarts == 0
        assert f"of {lost}: again on {used} {spare}, with a spare node" in training.job.log
        assert training.events.count("resume") == 1
        assert training.losses == undisturbed
    finally:
        cluster.machines[lost].power_on()
        cluster.wait_until_ready()


def test_node_whose_gpu_failed_is_left_out_of_next_start(start, place, undisturbed):
    fault = {"point": "optimizer", "action": "ecc", "rank": 1, "call": 10, "marker": f"{place}/failed"}
    env = ("--env", f"DSRUN_FAULT={json.dumps(fault)}", "--env", f"PYTHONPATH={INJECT}:{CHECKOUT}")
    training = start(place, *env, "--max-restarts", "0")
    accused = training.job.wait_for("RUNNING").machines()[1]
    training.job.wait_for_restart()
    assert accused not in training.job.wait_for("RUNNING").machines()
    assert accused in training.job.fact("ExcNodeList")
    finishes(training, undisturbed)


def test_node_whose_ranks_die_twice_is_left_out_of_next_start(ada, start, place, undisturbed):
    training = start(place, "--max-restarts", "1")
    job = training.job
    killed = job.wait_for("RUNNING").machines()[1]
    for count in (1, 2):
        job.until(training.folder.events.exists, "begun")
        job.until(lambda count=count: training.events.count("training") == count, f"at its attempt {count}")
        (rank,) = training.workers()[killed]
        ada.run("kill", "-KILL", rank, machine=killed)
        job.until(lambda count=count: training.events.count("failure") == count, "failed")
    job.wait_for_restart()
    assert f"interrupted by 2 failures of {killed} and not finished: requeued" in job.log
    job.until(lambda: job.fact("ExcNodeList") == killed, f"told to leave out {killed}")
    assert killed not in job.wait_for("RUNNING").machines()
    job.wait_for("COMPLETED")
    assert training.losses == undisturbed


def test_controller_restart_does_not_disturb_job(cluster, at_work, undisturbed):
    training = at_work()
    cluster.stop_controller()
    try:
        training.thaw()
        # It has to train on while nobody answers.
        end = time.monotonic() + 300
        while max(training.losses) < 6 and time.monotonic() < end:
            time.sleep(0.1)
        assert max(training.losses) >= 6
    finally:
        cluster.start_controller()
    assert cluster.ready()
    training.job.wait_for("COMPLETED")
    assert training.job.restarts == 0
    assert training.losses == undisturbed


def test_max_requeues_fails_the_job(ada, at_work):
    """A job gives up after so many requeues without a new checkpoint."""
    training = at_work("--max-requeues", "1")
    job = training.job
    ada.run("scancel", "--signal=USR1", "--batch", job.id)
    training.thaw()
    job.wait_for_restart()
    job.until(lambda: "start 2," in job.log, "started again")
    # Before it has done another step.
    ada.run("scancel", "--signal=USR1", "--batch", job.id)
    job.wait_for("FAILED")
    assert job.restarts == 1
    assert "not finished after 1 requeues without a new checkpoint" in job.log
    assert not training.folder.finished.exists()
    assert last_cause(training.folder.events) == "slurm_requeue_limit"


@pytest.mark.parametrize("array", [(), ("--array", "3-4")], ids=["job", "array"])
def test_requeue_that_slurm_refuses_is_told_as_that(ada, place, array):
    """Of a job that was submitted with --no-requeue, whatever its script asks for."""
    program = ["bash", "-c", "until [ -e $DSRUN_STOP_FILE ]; do sleep 0.1; done; exit 75"]
    script = ada.render("--gpus-per-node", 0, "--nproc", 1, *array, program=program, cwd=place)
    assert "#SBATCH --requeue" in script
    job = ada.sbatch(script, "--no-requeue", cwd=place)
    job = job.task_of(3) if array else job
    job.wait_for("RUNNING")
    job.until(lambda: "start 1," in job.log, "started")
    run = place / "runs" / f"bash-{job.name}"
    ada.run("touch", run / "events.jsonl")
    ada.run("scancel", "--signal=USR1", "--batch", job.name)
    job.wait_for("FAILED")
    if array:
        ada.run("scancel", job.id)
    assert (job.exit_code, job.restarts) == (1, 0)
    assert "SLURM refused to requeue it: " in job.log
    assert "Requested operation is presently disabled" in job.log
    assert "scontrol update JobId=JOB Requeue=1" in job.log
    assert last_cause(run / "events.jsonl") == of_run(run).cause.code == "slurm_requeue_refused"


def test_requeue_that_was_refused_works_after_the_update_that_is_named(ada, place):
    program = ["bash", "-c", "until [ -e $DSRUN_STOP_FILE ]; do sleep 0.1; done; exit 75"]
    script = ada.render("--gpus-per-node", 0, "--nproc", 1, program=program, cwd=place)
    job = ada.sbatch(script, "--no-requeue", cwd=place)
    job.until(lambda: job.state == "RUNNING" and "start 1," in job.log, "started")
    ada.run("scontrol", "update", f"JobId={job.id}", "Requeue=1")
    ada.run("scancel", "--signal=USR1", "--batch", job.id)
    job.wait_for_restart()
    ada.run("scancel", job.id)


def test_requeue_waits_until_the_controller_is_back(cluster, ada, place):
    """A job whose state nobody tells is not taken for one that was cancelled."""
    program = ["bash", "-c", "until [ -e $DSRUN_STOP_FILE ]; do sleep 0.1; done; exit 75"]
    job = ada.submit("--gpus-per-node", 0, "--nproc", 1, program=program, cwd=place)
    job.until(lambda: job.state == "RUNNING" and "start 1," in job.log, "started")
    log, (machine,) = Path(job.fact("StdOut")), job.machines()
    cluster.stop_controller()
    try:
        words = ["pkill", "-USR1", "-f", "^/bin/bash .*/slurm_script$"]
        ada.run(*words, machine=machine)
        job.until(lambda: "controller does not answer" in log.read_text(), "without an answer")
    finally:
        cluster.start_controller()
    job.wait_for_restart()
    ada.run("scancel", job.id)


STEPS_OF_DDP = """
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, saved, model = dist.get_rank(), Path("saved"), torch.nn.Linear(4, 1)
model = torch.nn.parallel.DistributedDataParallel(model)
for step in range(int(saved.read_text()) + 1 if saved.exists() else 1, 13):
    while step == 8 and not Path("go").exists():
        time.sleep(0.05)
    loss = model(torch.ones(2, 4)).pow(2).mean()
    loss.backward()
    if rank == 0:
        print(f"step {step}/12 loss {loss.item():.4f}", flush=True)
        saved.write_text(str(step))
dist.barrier()
os._exit(0)
"""


def told(run):
    """What all that read a run folder say of it: the states with their steps, and what was diagnosed."""
    (row,) = runs_of(run)
    statuses = (row.status, RunSource(run).read().status, read_run(run, "run").status)
    found = samples(read_history(run), time.time())
    exported = next(labels["state"] for name, labels, value in found if name == "dsrun_run_state" and value)
    return {*((each.state, each.step) for each in statuses), (exported, row.status.step)}, of_run(run).cause.code


def test_program_tells_its_state_over_loss_of_a_node(cluster, ada, place):
    """A program of one's own: while it trains, when a node is lost, and when a spare one has taken its place."""
    (place / "x.py").write_text(STEPS_OF_DDP)
    options = ["--nodes", 2, "--spare", 1, "--gpus-per-node", 0, "--nproc", 1, "--max-restarts", 1]
    job = ada.submit(*options, program=["x.py"], cwd=place)
    run = place / "runs" / f"x-{job.id}"
    job.until(lambda: (place / "saved").exists() and (place / "saved").read_text() == "7", "at step 7")
    job.until(lambda: progress(run / "metrics.jsonl") and told(run) == ({("training", 7)}, "running"), "recorded")
    _, lost, _ = job.machines()
    cluster.machines[lost].power_off()
    try:
        (place / "go").touch()
        job.until(lambda: told(run) == ({("failed", 7)}, "node_lost"), "failed")
        job.wait_for("COMPLETED")
        assert told(run) == ({("finished", 12)}, "none")
        assert last_cause(run / "events.jsonl") is None
    finally:
        cluster.machines[lost].power_on()
        cluster.wait_until_ready()


def test_program_that_is_cancelled_was_stopped(ada, place):
    """One that does not heed the signal, until SLURM kills all: by its supervisor's record, which it makes at once."""
    (place / "x.py").write_text(STEPS_OF_DDP)
    options = ["--nodes", 2, "--gpus-per-node", 0, "--nproc", 1]
    job = ada.submit(*options, program=["x.py"], cwd=place)
    run = place / "runs" / f"x-{job.id}"
    job.until(lambda: progress(run / "metrics.jsonl") and told(run) == ({("training", 7)}, "running"), "recorded")
    ada.run("scancel", job.id)
    job.wait_for("CANCELLED")
    assert last_record(run / "events.jsonl")["signal"] == "SIGTERM"
    assert told(run) == ({("training", 7)}, "running")
    # Another machine waits whether its supervisor reports once more.
    written = time.time() - STALE_S
    for file in run.rglob("*"):
        os.utime(file, (written, written))
    assert told(run) == ({("stopped", 7)}, "interrupted")
