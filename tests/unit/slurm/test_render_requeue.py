"""The way back into the queue: which jobs are requeued, how often, without which nodes. Run under the real bash."""

from __future__ import annotations

import json
import signal

import pytest

from dsrun.diagnosis.diagnose import of_logs
from tests.unit.slurm.stand_ins import (
    JOB,
    PREEMPTED,
    REQUEUE,
    SAVES,
    SCONTROL,
    SRUN,
    Shell,
    begun,
    other,
    rendezvous,
    requeued,
    signalled,
    training,
)

TASK = JOB.replace("JobId=12 ", "JobId=12 ArrayJobId=12 ArrayTaskId=3 ")


@pytest.mark.parametrize(("render_it", "options", "most"), [
    (training, {}, 3), (other, {}, 20), (training, {"max_requeues": "2"}, 2), (other, {"max_requeues": "2"}, 2),
])  # fmt: skip
def test_requeues_without_progress_are_limited(shell, render_it, options, most):
    """To three; of a program that tells no steps, to twenty in all."""
    run = "train-12" if render_it is training else "x-12"
    with_events(shell, run)
    (shell.folder / "runs" / run / "logs").mkdir()
    shell.worker, shell.job = "exit 143", PREEMPTED
    for restart, again in ((0, True), (most - 1, True), (most, False), (99, False)):
        (shell.folder / "runs" / run / "logs" / "slurm-12-requeues").write_text("0\n" * restart)
        shell.variables["SLURM_RESTART_COUNT"] = str(restart)
        done = shell.run(render_it(shell, **options))
        assert (requeued(done), done.code == 0) == (again, again)
    assert [each.get("cause") for each in recorded(shell, run)] == [None, None, *["slurm_requeue_limit"] * 2]


def test_program_that_makes_steps_is_requeued_on(shell):
    """By the steps that its supervisor has recorded: further ones count as progress, repeated ones do not."""
    with_events(shell, "x-12")
    shell.worker, shell.job = "exit 143", PREEMPTED
    seen = []
    for restart, step in enumerate([5, 8, 8, 2, 8, 7, 9, 9]):
        shell.variables["SLURM_RESTART_COUNT"] = str(restart)
        with (shell.folder / "runs" / "x-12" / "metrics.jsonl").open("a") as file:
            file.write(f'{{"time": "t", "step": {step}, "loss": 1.0}}\n')
        seen.append(requeued(shell.run(other(shell))))
    assert seen == [True, True, True, True, False, False, True, True]


def test_requeue_false_disables_requeue(shell):
    """Without requeueing a stopped job does not go back into the queue."""
    shell.worker, shell.job = SAVES, PREEMPTED
    done = signalled(shell, training(shell, requeue="false"), signal.SIGUSR1)
    assert not requeued(done)
    assert done.code == 75  # a job that is not finished did not succeed


REFUSAL = """case "$1" in
    show) cat "$STAND_INS/job" ;;
    requeue) echo 'Requested operation is "presently" disabled' >&2; exit 1 ;;
esac
"""


def recorded(shell: Shell, run: str = "train-12") -> list[dict[str, object]]:
    """The events that the script has added to those of a run."""
    lines = (shell.folder / "runs" / run / "events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if "kind" in line]


def with_events(shell: Shell, run: str = "train-12") -> None:
    (shell.folder / "runs" / run).mkdir(parents=True)
    (shell.folder / "runs" / run / "events.jsonl").write_text('{"cut": "o')


@pytest.mark.parametrize("requeue", ["0", "1"])
def test_requeue_that_slurm_refuses_is_told_as_that(shell, requeue):
    """In the log, in the run's events, and by an exit code that is not that of a saved run."""
    with_events(shell)
    shell.worker = SAVES
    shell.job = JOB.replace("   JobState", f"   Requeue={requeue} Restarts=0\n   JobState")
    shell.put("scontrol", REFUSAL)
    done = signalled(shell, training(shell), signal.SIGUSR1)
    assert (done.code, done.of("scontrol").count(REQUEUE)) == (1, 2)
    (event,) = recorded(shell)
    assert (event["kind"], event["cause"], event["exit_code"]) == ("failure", "slurm_requeue_refused", 1)
    assert 'refused to requeue it: Requested operation is "presently" disabled' in event["message"]
    assert ("scontrol update JobId=JOB Requeue=1" in done.stderr) == (requeue == "0")
    log = shell.folder / "log.txt"
    log.write_text(done.stderr)
    assert of_logs({"log": log}).cause.code == "slurm_requeue_refused"


def test_requeue_is_an_event(shell):
    with_events(shell)
    shell.worker = SAVES
    assert requeued(signalled(shell, training(shell), signal.SIGUSR1))
    (event,) = recorded(shell)
    assert (event["kind"], event["message"]) == (
        "requeue",
        "interrupted by USR1 and not finished: requeued (requeues without a new checkpoint: 0 of 3)",
    )


def test_requeue_waits_for_a_controller_that_is_away(shell):
    """The job is not taken for one that was cancelled."""
    shell.worker = SAVES
    shell.put("sleep", 'rm -f "$STAND_INS/away"; exec /usr/bin/sleep 0.02')
    away = '[ ! -e "$STAND_INS/away" ] || { echo "Unable to contact slurm controller" >&2; exit 1; }\n'
    shell.put("scontrol", away + SCONTROL)
    process = begun(shell, training(shell))
    (shell.tools / "away").touch()
    shell.worker = "exit 0"
    process.send_signal(signal.SIGUSR1)
    done = shell.ended(process)
    assert (done.code, done.of("scontrol")[-1]) == (0, REQUEUE)


@pytest.mark.parametrize(("restart", "again"), [(2, True), (3, False)])
def test_requeues_are_limited_where_none_can_be_recorded(shell, restart, again):
    """On a full disk, where no checkpoint can be saved either: all of them count."""
    shell.worker, shell.job = "exit 143", PREEMPTED
    shell.variables["SLURM_RESTART_COUNT"] = str(restart)
    (shell.folder / "runs" / "train-12" / "logs" / "slurm-12-requeues").mkdir(parents=True)
    assert requeued(shell.run(training(shell))) == again


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
