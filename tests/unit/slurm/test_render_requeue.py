"""The way back into the queue: which jobs are requeued, how often, without which nodes. Run under the real bash."""

from __future__ import annotations

import signal

import pytest

from tests.unit.slurm.stand_ins import (
    JOB,
    PREEMPTED,
    REQUEUE,
    SAVES,
    SCONTROL,
    SRUN,
    Shell,
    other,
    rendezvous,
    requeued,
    signalled,
    training,
)

TASK = JOB.replace("JobId=12 ", "JobId=12 ArrayJobId=12 ArrayTaskId=3 ")


def test_max_requeues_limit(shell):
    """A job goes back into the queue at most --max-requeues times."""
    shell.worker, shell.job = "exit 143", PREEMPTED
    for restart, again in (("0", True), ("1", True), ("2", False), ("7", False)):
        shell.variables["SLURM_RESTART_COUNT"] = restart
        done = shell.run(training(shell, max_requeues="2"))
        assert (requeued(done), done.code == 0) == (again, again)


def test_requeue_false_disables_requeue(shell):
    """Without requeueing a stopped job does not go back into the queue."""
    shell.worker, shell.job = SAVES, PREEMPTED
    done = signalled(shell, training(shell, requeue="false"), signal.SIGUSR1)
    assert not requeued(done)
    assert done.code == 75  # a job that is not finished did not succeed


def test_failed_requeue_is_no_success(shell):
    """A job whose requeue failed does not exit with 0."""
    shell.worker, shell.job = SAVES, PREEMPTED
    shell.put("scontrol", 'case "$1" in show) cat "$STAND_INS/job";; requeue) exit 1;; esac\n')
    assert signalled(shell, training(shell), signal.SIGUSR1).code == 75


def test_array_task_requeues_only_itself(shell):
    """An array task never acts for the whole array."""
    # The last task of an array has the array's own number as its SLURM_JOB_ID.
    shell.variables |= {"SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}
    shell.worker, shell.job = SAVES, TASK
    done = signalled(shell, training(shell, array="0-3", array_flag="--seed"), signal.SIGUSR1)
    assert done.of("scontrol")[-1] == ("requeue", "12_3")
    assert ("--quiet", "--signal=USR1", "12_3") in done.of("scancel")
    first, *others = [words[2] for words in done.of("scontrol") if words[:2] == ("show", "job")]
    assert first == "12"  # whether it is a task of that array at all
    assert set(others) == {"12_3"}
    assert done.received == ["dsrun.train", "--seed", "3"]
    assert (shell.folder / "runs" / "train-12_3").is_dir()


def test_array_task_id_kept_without_controller(shell):
    """An array task keeps its id when the controller does not answer."""
    shell.variables |= {"SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3", "SLURM_RESTART_COUNT": "1"}
    shell.job = ""
    assert rendezvous(shell.run(training(shell)))["--rdzv-id"] == "12_3-1"


def test_requeue_after_lost_node_before_slurm_notices(shell):
    """A job that lost a node is requeued before SLURM has noticed."""
    shell.worker = "exit 1"
    shell.put("srun", f'[ "${{@: -1}}" != true ] || exit 1\n{SRUN}')
    done = shell.run(training(shell, nodes="2"))
    assert done.of("scontrol")[-1] == REQUEUE
    assert "the loss of a node" in done.stderr


def test_srun_refusal_is_not_a_lost_node(shell):
    """A step that no node could start does not mean a lost node.

    What srun refuses once it would refuse again, after each of twenty requeues.
    """
    shell.put("srun", "exit 1")
    done = shell.run(training(shell, nodes="2"))
    assert (done.code, requeued(done)) == (1, False)


@pytest.mark.parametrize("render_it", [training, other])
def test_preempted_job_requeued_without_signal_to_script(shell, render_it):
    """A preempted job goes back into the queue even if the script got no signal."""
    shell.worker, shell.job = "exit 143", PREEMPTED
    done = shell.run(render_it(shell))
    assert done.of("scontrol")[-1] == REQUEUE
    assert "preemption" in done.stderr


def test_workers_that_were_told_to_stop_are_no_preemption(shell):
    """srun ends the other nodes' tasks with TERM when one has failed: a crash would come again after each requeue."""
    shell.worker = 'echo SIGTERM >"$DSRUN_STOP_FILE"; exit 3'
    done = shell.run(other(shell))
    assert not requeued(done)
    assert done.code != 0


def test_job_name_does_not_fake_preemption(shell):
    """A job name that contains PreemptTime does not look like a preemption."""
    shell.worker = "exit 3"
    shell.job = "JobId=12 JobName=x PreemptEligibleTime=1 PreemptTime=1\n   JobState=RUNNING \n"
    assert not requeued(shell.run(training(shell)))


@pytest.mark.parametrize(("before", "excluded"), [("(null)", "second-node"), ("bad[1-3]", "bad[1-3],second-node")])
def test_node_with_hardware_error_excluded_from_next_start(shell, before, excluded):
    """Node 0's supervisor has written the number of the node."""
    shell.put("scontrol", SCONTROL.replace('echo "first-node"', 'printf "first-node\\nsecond-node\\n"'))
    shell.worker = 'touch "$DSRUN_FAILURES/no-gpus"; echo 1 >"$DSRUN_FAILURES/faulty-node"; exit 4'
    shell.job = JOB + f"   ReqNodeList=(null) ExcNodeList={before}\n"
    done = shell.run(training(shell))
    assert done.code == 0
    assert "a hardware error of second-node" in done.stderr
    requeue, _, update = done.of("scontrol")[-3:]
    assert requeue == REQUEUE
    assert update == ("update", "JobId=12", f"ExcNodeList={excluded}")


def test_node_that_failed_twice_is_excluded_and_named(shell):
    """Node 0's supervisor has written why, after the number of the node."""
    shell.put("scontrol", SCONTROL.replace('echo "first-node"', 'printf "first-node\\nsecond-node\\n"'))
    shell.worker = 'echo "1 2 failures" >"$DSRUN_FAILURES/faulty-node"; exit 137'
    done = shell.run(training(shell))
    assert (done.code, requeued(done)) == (0, True)
    assert "interrupted by 2 failures of second-node and not finished: requeued" in done.stderr
    assert ("update", "JobId=12", "ExcNodeList=second-node") in done.of("scontrol")


def test_hardware_error_without_requeue_keeps_exit_code(shell):
    shell.worker = 'echo 0 >"$DSRUN_FAILURES/faulty-node"; exit 1'
    done = shell.run(training(shell, requeue="false"))
    assert (done.code, requeued(done)) == (1, False)


def checkpoint(shell: Shell, step: int) -> None:
    folder = shell.folder / "runs" / "train-12" / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "manifest.json").touch()


def test_requeues_are_counted_since_the_last_checkpoint(shell):
    """A job that makes progress is requeued as often as it takes; one that makes none, only so many times."""
    shell.worker = SAVES
    script = training(shell, max_requeues="2")
    seen = []
    for restart, step in enumerate([10, None, None, 20, None, None, None]):
        shell.variables["SLURM_RESTART_COUNT"] = str(restart)
        shell.job = JOB.replace("   JobState", f"   Requeue=1 Restarts={restart} BatchFlag=1\n   JobState")
        if step:
            checkpoint(shell, step)
        (shell.tools / "environment").unlink(missing_ok=True)
        seen.append(requeued(signalled(shell, script, signal.SIGUSR1)))
    assert seen == [True, True, False, True, True, False, False]


def test_sbatch_in_job_drops_outer_slurm_variables(shell):
    """sbatch passes on all that it finds; srun fails over two kinds of memory, or GPUs that the job does not have."""
    theirs = {
        "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3", "SLURM_RESTART_COUNT": "9", "SLURM_GPUS_PER_NODE": "8",
        "SLURM_GPUS": "8", "SLURM_MEM_PER_NODE": "2000", "SLURM_MEM_PER_CPU": "1000", "SLURM_CPU_BIND": "quiet,mask",
    }  # fmt: skip
    shell.variables |= theirs | {"SLURM_GPUS_ON_NODE": "2"}
    shell.worker, shell.job = (
        SAVES,
        JOB.replace("   StdErr", "   Requeue=1 Restarts=0 BatchFlag=1\n   StdErr"),
    )
    done = signalled(shell, training(shell, max_requeues="3"), signal.SIGUSR1)
    assert theirs.keys() & done.environment.keys() == set()
    assert done.environment["SLURM_GPUS_ON_NODE"] == "2"
    assert ("--quiet", "--signal=USR1", "12") in done.of("scancel")
    assert done.of("scontrol")[-1] == REQUEUE
    assert rendezvous(done)["--rdzv-id"] == "12-0"
