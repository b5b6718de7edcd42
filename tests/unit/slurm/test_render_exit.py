"""How a rendered script exits: exit codes, signals, the way back into the queue. Run under the real bash."""

from __future__ import annotations

import os
import signal
import time

import pytest

from dsrun.runs.stop_request import read_stop_file
from tests.unit.slurm.stand_ins import FINISHED, JOB, SCONTROL, SRUN, Shell, other, rendezvous, requeued, training

# Waits for the signal that the stand-in for scancel stands for, as a worker that saves and leaves.
SAVES = 'until [ -e "$DSRUN_STOP_FILE" ]; do sleep 0.02; done; exit 0'
PREEMPTED = JOB + "   PreemptEligibleTime=2026-11-21T08:00:00 PreemptTime=2026-11-21T08:00:05\n"
CANCELLED = JOB.replace("   JobState=RUNNING", "   JobState=COMPLETING")
REQUEUE = ("requeue", "12")
TASK = JOB.replace("JobId=12 ", "JobId=12 ArrayJobId=12 ArrayTaskId=3 ")


def until(condition, what: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def begun(shell: Shell, script: str):
    """Start it, and wait until the worker is there."""
    process = shell.start(script)
    until((shell.tools / "environment").exists, "the worker never started")
    return process


def signalled(shell: Shell, script: str, which: signal.Signals):
    """Run it, and send its batch shell a signal once the worker is there."""
    process = begun(shell, script)
    process.send_signal(which)
    return shell.ended(process)


def test_finished_run_completes_job_without_requeue(shell):
    """A finished run is a completed job."""
    shell.worker = FINISHED
    done = shell.run(training(shell))
    assert (done.code, requeued(done)) == (0, False)


def test_worker_told_how_long_the_job_was_queued(shell):
    """From the controller; nothing where it does not say."""
    shell.worker = FINISHED
    shell.variables["TZ"] = "UTC"
    shell.job = JOB + (
        "   SubmitTime=2026-11-21T08:00:00 EligibleTime=2026-11-21T08:01:00\n"
        "   StartTime=2026-11-21T08:05:00 EndTime=Unknown Deadline=N/A\n"
    )
    known = shell.run(training(shell)).environment
    assert (known["DSRUN_QUEUED"], known["DSRUN_BEGAN"]) == ("300", "1795248300")
    shell.job = JOB
    assert "DSRUN_QUEUED" not in shell.run(training(shell)).environment


def test_finished_marker_of_earlier_run_ignored(shell):
    """A FINISHED file of an earlier run does not count."""
    folder = shell.folder / "runs" / "train-12"
    folder.mkdir(parents=True)
    (folder / "FINISHED").touch()
    time.sleep(0.05)
    shell.worker = "exit 5"
    done = shell.run(training(shell))
    assert (done.code, requeued(done)) == (5, False)


def test_failed_run_keeps_exit_code_without_requeue(shell):
    """A failed run keeps its code and stays out of the queue."""
    shell.worker = "exit 9"
    done = shell.run(training(shell))
    assert (done.code, requeued(done)) == (9, False)


def test_requeue_after_stop_signal_to_steps(shell):
    """A run that was told to stop by signals to its steps goes back into the queue.

    The batch script has heard nothing of them.
    """
    shell.worker = "exit 75"
    done = shell.run(training(shell))
    assert (done.code, requeued(done)) == (0, True)


@pytest.mark.parametrize("which", [signal.SIGUSR1, signal.SIGTERM])
def test_requeue_after_forwarded_signal(shell, which):
    """A signal is forwarded, and the job goes back into the queue."""
    shell.worker = SAVES
    done = signalled(shell, training(shell), which)
    assert ("--quiet", "--signal=USR1", "12") in done.of("scancel")
    assert done.of("scontrol")[-1] == REQUEUE
    assert done.code == 0
    assert f"received {which.name[3:]}" in done.stderr


@pytest.mark.parametrize(
    ("sent", "named"),
    [
        ([signal.SIGUSR1], "SIGUSR1"),
        ([signal.SIGTERM], "SIGTERM"),
        ([signal.SIGTERM, signal.SIGUSR1], "SIGTERM"),
    ],
)
def test_stop_file_names_first_signal(shell, sent, named):
    """The workers read from the stop file which signal came first."""
    shell.worker = 'until [ -e "$STAND_INS/go" ]; do sleep 0.02; done; exit 75'
    process = begun(shell, training(shell))

    def passed_on() -> int:
        return (shell.tools / "record").read_bytes().count(b"\0scancel\0")

    for count, which in enumerate(sent, 1):
        process.send_signal(which)
        until(lambda count=count: passed_on() == count, "it was not passed on")
    (shell.tools / "go").touch()
    shell.ended(process)
    stop = next(shell.folder.rglob("stop"))
    request = read_stop_file(stop)
    assert request is not None
    assert request.signal == named
    assert {path.name for path in stop.parent.iterdir()} == {"began", "reached", "stop"}


def test_stop_file_without_content_where_it_cannot_be_written(shell):
    """A stop file that takes no content is still created."""
    shell.put("mv", 'rm -f "$1"; exit 1')
    shell.worker = SAVES
    done = signalled(shell, training(shell), signal.SIGUSR1)
    stop = next(shell.folder.rglob("stop"))
    assert (done.code, stop.read_text()) == (0, "")


def test_repeated_signals_are_all_forwarded(shell):
    """Signals that arrive repeatedly are all forwarded, and the exit code is kept."""
    shell.worker = 'until [ -e "$STAND_INS/go" ]; do sleep 0.02; done; exit 6'
    process = begun(shell, other(shell, requeue="false"))

    def passed_on() -> int:
        return (shell.tools / "record").read_bytes().count(b"\0scancel\0")

    for count, which in enumerate((signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1), 1):
        process.send_signal(which)
        # Two that wait for the shell at once are one to the kernel.
        until(lambda count=count: passed_on() == count, "it was not passed on")
    (shell.tools / "go").touch()
    done = shell.ended(process)
    assert done.code == 6
    assert len(done.of("scancel")) == 3


def test_cancelled_job_is_not_requeued(shell):
    """A cancelled job does not go back into the queue."""
    shell.worker, shell.job = SAVES, CANCELLED
    done = signalled(shell, training(shell), signal.SIGTERM)
    assert not requeued(done)
    assert done.code != 0


def test_signalled_but_finished_job_is_not_requeued(shell):
    """A job that finished after a signal stays finished."""
    shell.worker = SAVES.replace("exit 0", 'touch "$DSRUN_OUTPUT/FINISHED"; exit 0')
    done = signalled(shell, training(shell), signal.SIGUSR1)
    assert (done.code, requeued(done)) == (0, False)


@pytest.mark.parametrize(("before", "excluded"), [("(null)", "second-node"), ("bad[1-3]", "bad[1-3],second-node")])
def test_node_with_hardware_error_excluded_from_next_start(shell, before, excluded):
    """Node 0's supervisor has written the number of the node."""
    shell.put("scontrol", SCONTROL.replace('echo "first-node"', 'printf "first-node\\nsecond-node\\n"'))
    shell.worker = 'echo 1 >"$DSRUN_FAILURES/faulty-node"; exit 1'
    shell.job = JOB + f"   ReqNodeList=(null) ExcNodeList={before}\n"
    done = shell.run(training(shell))
    assert done.code == 0
    assert "a hardware error of second-node" in done.stderr
    requeue, _, update = done.of("scontrol")[-3:]
    assert requeue == REQUEUE
    assert update == ("update", "JobId=12", f"ExcNodeList={excluded}")


def test_hardware_error_without_requeue_keeps_exit_code(shell):
    shell.worker = 'echo 0 >"$DSRUN_FAILURES/faulty-node"; exit 1'
    done = shell.run(training(shell, requeue="false"))
    assert (done.code, requeued(done)) == (1, False)


@pytest.mark.parametrize("render_it", [training, other])
def test_preempted_job_requeued_without_signal_to_script(shell, render_it):
    """A preempted job goes back into the queue even if the script got no signal."""
    shell.worker, shell.job = "exit 143", PREEMPTED
    done = shell.run(render_it(shell))
    assert done.of("scontrol")[-1] == REQUEUE
    assert "preemption" in done.stderr


def test_job_name_does_not_fake_preemption(shell):
    """A job name that contains PreemptTime does not look like a preemption."""
    shell.worker = "exit 3"
    shell.job = "JobId=12 JobName=x PreemptEligibleTime=1 PreemptTime=1\n   JobState=RUNNING \n"
    assert not requeued(shell.run(training(shell)))


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


def test_stuck_workers_ended_before_requeue(shell):
    """Workers that do not leave in time are ended, so that the job can be requeued."""
    shell.worker = 'until [ -e "$STAND_INS/ended" ]; do sleep 0.02; done; exit 1'
    shell.put("scancel", '[ "$2" != --signal=HUP ] || touch "$STAND_INS/ended"\n')
    script = training(shell, signal_lead="100")
    assert "saving_time=70\n" in script
    done = signalled(shell, script.replace("saving_time=70", "saving_time=0.3"), signal.SIGUSR1)
    assert done.of("scontrol")[-1] == REQUEUE


def test_worker_kill_timer_ends_with_its_script(shell):
    """The timer does not end the workers of a later start."""
    shell.worker = SAVES
    # However long the script takes to its end: its time is up afterwards.
    wait = 'until [ -e "$STAND_INS/late" ]; do sleep 0.02; done &&'
    script = training(shell, signal_lead="100", inline="true")
    assert 'sleep "$saving_time" &&' in script
    assert requeued(signalled(shell, script.replace('sleep "$saving_time" &&', wait), signal.SIGUSR1))
    (shell.tools / "late").touch()
    time.sleep(0.6)
    assert b"--signal=HUP" not in (shell.tools / "record").read_bytes()


def test_external_program_exit_0_after_signal_not_requeued(shell):
    """An external program that exits with 0 after a signal is finished."""
    shell.worker = SAVES
    done = signalled(shell, other(shell), signal.SIGUSR1)
    assert (done.code, requeued(done)) == (0, False)


def test_external_program_exit_code_after_signal_requeued(shell):
    """An external program that exits with another code after a signal is requeued."""
    shell.worker = SAVES.replace("exit 0", "exit 75")
    assert requeued(signalled(shell, other(shell), signal.SIGUSR1))


def test_external_program_exit_code_from_torchrun_report(shell):
    """The exit code of an external program is read from torchrun's report."""
    shell.worker = 'printf "  exitcode  : -15 (pid: 1)\\n  exitcode  : 42 (pid: 2)\\n" >log.txt; exit 1'
    assert shell.run(other(shell)).code == 42


def test_external_program_signal_exit_code_is_128_plus_signal(shell):
    """A signal that ended a worker becomes 128 plus its number."""
    shell.worker = 'printf "  exitcode  : -15 (pid: 1)\\n  exitcode  : -9 (pid: 2)\\n" >log.txt; exit 1'
    assert shell.run(other(shell)).code == 137


def test_torchrun_report_before_requeue_ignored(shell):
    """A report from before a requeue is not read again."""
    shell.variables |= {"SLURM_RESTART_COUNT": "1"}
    shell.worker = 'printf "  exitcode  : 42 (pid: 1)\\nx dsrun: job 12, start 2, on a\\n" >log.txt; exit 3'
    assert shell.run(other(shell)).code == 3


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


def staged(shell: Shell, **options) -> str:
    return training(shell, stage="/shared/x-1-py3-none-any.whl", local_dir=str(shell.tools), **options)


@pytest.mark.parametrize("code", [138, 143])
def test_requeue_after_signal_during_staging(shell, code):
    """A signal that ends the staging puts the job back into the queue."""
    shell.put("srun", f"exit {code}")
    done = shell.run(staged(shell))
    assert (done.code, done.of("scontrol")[-1]) == (0, REQUEUE)
    done = shell.run(staged(shell, requeue="false"))
    assert (done.code, requeued(done)) == (75, False)


def test_stop_during_staging_starts_no_training(shell):
    """A job that is told to stop while staging starts no training."""
    shell.put("sbcast", 'touch "$STAND_INS/environment"\n' + SAVES)
    done = signalled(shell, staged(shell), signal.SIGUSR1)
    assert (done.code, done.of("scontrol")[-1], done.of("python")) == (0, REQUEUE, [])


def test_staging_failure_is_not_requeued(shell):
    """What cannot be staged ends the job for good."""
    shell.put("sbcast", "exit 1")
    done = shell.run(staged(shell))
    assert (done.code, requeued(done)) == (4, False)
    assert done.of("srun")[-2][-3:] == ("rm", "-rf", f"{shell.tools}/dsrun-{os.getuid()}-12")


def test_torchrun_report_found_in_log_with_unfilled_pattern(shell):
    """A report is found in a log whose name SLURM has not filled in."""
    shell.worker = "exit 7"
    script = other(shell)
    shell.job = shell.job.replace("log.txt", "log-%N.txt")
    shell.put("python", 'echo "  exitcode  : 42 (pid: 2)" >&2; exit 1')
    wrapped = f"exec 2>{shell.tools}/own.txt\n{script}"
    assert shell.run(wrapped).code == 42


def checkpoint(shell: Shell, step: int) -> None:
    folder = shell.folder / "runs" / "train-12" / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "manifest.json").touch()


def test_exit_0_without_signal_is_not_requeued(shell):
    """A run that ends with 0 and has no marker, as in another folder, does not start again and again."""
    shell.worker = "exit 0"
    done = shell.run(training(shell))
    assert (done.code, requeued(done)) == (0, False)


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
