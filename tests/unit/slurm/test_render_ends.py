"""How a rendered script ends: exit codes, signals, the way back into the queue. Run under the real bash."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.unit.slurm.stand_ins import FINISHED, JOB, SRUN, Shell, other, rendezvous, requeued, training

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


def test_a_finished_run_is_a_completed_job(shell):
    shell.worker = FINISHED
    done = shell.run(training(shell))
    assert (done.code, requeued(done)) == (0, False)


def test_a_finished_marker_of_an_earlier_run_is_not_believed(shell):
    folder = shell.folder / "runs" / "train-12"
    folder.mkdir(parents=True)
    (folder / "FINISHED").touch()
    time.sleep(0.05)
    shell.worker = "exit 5"
    done = shell.run(training(shell))
    assert (done.code, requeued(done)) == (5, False)


def test_a_failed_run_keeps_its_code_and_stays_out_of_the_queue(shell):
    shell.worker = "exit 9"
    done = shell.run(training(shell))
    assert (done.code, requeued(done)) == (9, False)


def test_a_run_that_was_told_to_stop_by_signals_to_its_steps_goes_back_into_the_queue(shell):
    """The batch script has heard nothing of them."""
    shell.worker = "exit 75"
    done = shell.run(training(shell))
    assert (done.code, requeued(done)) == (0, True)


@pytest.mark.parametrize("which", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_is_passed_on_and_the_job_goes_back_into_the_queue(shell, which):
    shell.worker = SAVES
    done = signalled(shell, training(shell), which)
    assert ("--quiet", "--signal=USR1", "12") in done.of("scancel")
    assert done.of("scontrol")[-1] == REQUEUE
    assert done.code == 0
    assert f"got {which.name[3:]}" in done.stderr


def test_signals_that_come_twice_lose_nothing(shell):
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


def test_a_cancelled_job_is_not_put_back(shell):
    shell.worker, shell.job = SAVES, CANCELLED
    done = signalled(shell, training(shell), signal.SIGTERM)
    assert not requeued(done)
    assert done.code != 0


def test_a_job_that_was_signalled_and_finished_is_finished(shell):
    shell.worker = SAVES.replace("exit 0", 'touch "$DSRUN_OUTPUT/FINISHED"; exit 0')
    done = signalled(shell, training(shell), signal.SIGUSR1)
    assert (done.code, requeued(done)) == (0, False)


@pytest.mark.parametrize("render_it", [training, other])
def test_a_preempted_job_goes_back_though_the_script_heard_nothing(shell, render_it):
    shell.worker, shell.job = "exit 143", PREEMPTED
    done = shell.run(render_it(shell))
    assert done.of("scontrol")[-1] == REQUEUE
    assert "preemption" in done.stderr


def test_a_jobs_own_words_do_not_make_it_look_preempted(shell):
    shell.worker = "exit 3"
    shell.job = "JobId=12 JobName=x PreemptEligibleTime=1 PreemptTime=1\n   JobState=RUNNING \n"
    assert not requeued(shell.run(training(shell)))


def test_a_job_goes_back_so_often_and_no_more(shell):
    shell.worker, shell.job = "exit 143", PREEMPTED
    for restart, again in (("0", True), ("1", True), ("2", False), ("7", False)):
        shell.variables["SLURM_RESTART_COUNT"] = restart
        done = shell.run(training(shell, max_requeues="2"))
        assert (requeued(done), done.code == 0) == (again, again)


def test_no_requeue_means_none(shell):
    shell.worker, shell.job = SAVES, PREEMPTED
    done = signalled(shell, training(shell, requeue="false"), signal.SIGUSR1)
    assert not requeued(done)
    assert done.code == 75  # a job that is not finished did not succeed


def test_a_requeue_that_fails_is_no_success(shell):
    shell.worker, shell.job = SAVES, PREEMPTED
    shell.put("scontrol", 'case "$1" in show) cat "$STAND_INS/job";; requeue) exit 1;; esac\n')
    assert signalled(shell, training(shell), signal.SIGUSR1).code == 75


def test_workers_that_do_not_leave_in_time_are_ended_so_that_the_job_can_go_back(shell):
    shell.worker = 'until [ -e "$STAND_INS/ended" ]; do sleep 0.02; done; exit 1'
    shell.put("scancel", '[ "$2" != --signal=HUP ] || touch "$STAND_INS/ended"\n')
    script = training(shell, signal_lead="100")
    assert "sleep 70 &&" in script
    done = signalled(shell, script.replace("sleep 70 &&", "sleep 0.3 &&"), signal.SIGUSR1)
    assert done.of("scontrol")[-1] == REQUEUE


def test_nobody_ends_workers_of_a_later_start(shell):
    shell.worker = SAVES
    # However long the script takes to its end: its time is up afterwards.
    wait = 'until [ -e "$STAND_INS/late" ]; do sleep 0.02; done &&'
    script = training(shell, signal_lead="100")
    assert "sleep 70 &&" in script
    assert requeued(signalled(shell, script.replace("sleep 70 &&", wait), signal.SIGUSR1))
    (shell.tools / "late").touch()
    time.sleep(0.6)
    assert b"--signal=HUP" not in (shell.tools / "record").read_bytes()


def test_any_other_program_that_ends_well_after_a_signal_is_finished(shell):
    shell.worker = SAVES
    done = signalled(shell, other(shell), signal.SIGUSR1)
    assert (done.code, requeued(done)) == (0, False)


def test_any_other_program_that_ends_with_a_code_after_a_signal_goes_back(shell):
    shell.worker = SAVES.replace("exit 0", "exit 75")
    assert requeued(signalled(shell, other(shell), signal.SIGUSR1))


def test_the_code_of_any_other_program_is_read_from_the_report_of_torchrun(shell):
    shell.worker = 'printf "  exitcode  : -15 (pid: 1)\\n  exitcode  : 42 (pid: 2)\\n" >log.txt; exit 1'
    assert shell.run(other(shell)).code == 42


def test_a_signal_that_ends_a_worker_of_any_other_program_is_128_and_its_number(shell):
    shell.worker = 'printf "  exitcode  : -15 (pid: 1)\\n  exitcode  : -9 (pid: 2)\\n" >log.txt; exit 1'
    assert shell.run(other(shell)).code == 137


def test_a_report_from_before_a_requeue_is_not_read_again(shell):
    shell.variables |= {"SLURM_RESTART_COUNT": "1"}
    shell.worker = 'printf "  exitcode  : 42 (pid: 1)\\nx dsrun: job 12, start 2, on a\\n" >log.txt; exit 3'
    assert shell.run(other(shell)).code == 3


def test_an_array_task_never_speaks_for_the_whole_array(shell):
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


def test_what_the_job_around_sbatch_was_given_is_not_this_jobs(shell):
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


def test_a_silent_controller_makes_no_task_of_an_array_a_job_of_its_own(shell):
    shell.variables |= {"SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3", "SLURM_RESTART_COUNT": "1"}
    shell.job = ""
    assert rendezvous(shell.run(training(shell)))["--rdzv-id"] == "12_3-1"


def test_a_job_that_lost_a_node_goes_back_before_slurm_has_noticed(shell):
    shell.worker = "exit 1"
    shell.put("srun", f'[ "${{@: -1}}" != true ] || exit 1\n{SRUN}')
    done = shell.run(training(shell, nodes="2"))
    assert done.of("scontrol")[-1] == REQUEUE
    assert "the loss of a node" in done.stderr


def test_a_step_that_no_node_could_start_is_no_lost_node(shell):
    """What srun refuses once it would refuse again, after each of twenty requeues."""
    shell.put("srun", "exit 1")
    done = shell.run(training(shell, nodes="2"))
    assert (done.code, requeued(done)) == (1, False)


def staged(shell: Shell, **options) -> str:
    return training(shell, stage="/shared/x-1-py3-none-any.whl", local_dir=str(shell.tools), **options)


@pytest.mark.parametrize("code", [138, 143])
def test_a_signal_that_ends_the_copying_puts_the_job_back_into_the_queue(shell, code):
    shell.put("srun", f"exit {code}")
    done = shell.run(staged(shell))
    assert (done.code, done.of("scontrol")[-1]) == (0, REQUEUE)
    done = shell.run(staged(shell, requeue="false"))
    assert (done.code, requeued(done)) == (75, False)


def test_a_job_that_is_told_to_stop_while_it_copies_starts_no_training(shell):
    shell.put("sbcast", 'touch "$STAND_INS/environment"\n' + SAVES)
    done = signalled(shell, staged(shell), signal.SIGUSR1)
    assert (done.code, done.of("scontrol")[-1], done.of("python")) == (0, REQUEUE, [])


def test_what_cannot_be_copied_ends_the_job_for_good(shell):
    shell.put("sbcast", "exit 1")
    done = shell.run(staged(shell))
    assert (done.code, requeued(done)) == (4, False)
    assert done.of("srun")[-2][-3:] == ("rm", "-rf", f"{shell.tools}/dsrun-{os.getuid()}-12")


def test_a_report_is_found_in_a_log_whose_name_slurm_has_not_filled_in(shell):
    shell.worker = "exit 7"
    script = other(shell)
    shell.job = shell.job.replace("log.txt", "log-%N.txt")
    shell.put("python", 'echo "  exitcode  : 42 (pid: 2)" >&2; exit 1')
    wrapped = f"exec 2>{shell.tools}/own.txt\n{script}"
    assert shell.run(wrapped).code == 42
