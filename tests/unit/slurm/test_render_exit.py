"""How a rendered script exits: exit codes and signals. Run under the real bash."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from dsrun.launch.program import any_program
from dsrun.runs.heartbeat import read_stop_file
from dsrun.slurm.render.job_script import render_script
from dsrun.slurm.render.site import ClusterSite
from tests.unit.slurm.stand_ins import (
    FINISHED,
    JOB,
    PREEMPTED,
    REQUEUE,
    SAVES,
    Shell,
    begun,
    other,
    requeued,
    signalled,
    spec_of,
    training,
    until,
)

CANCELLED = JOB.replace("   JobState=RUNNING", "   JobState=COMPLETING")


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


def test_exit_0_without_signal_is_not_requeued(shell):
    """A run that ends with 0 and has no marker, as in another folder, does not start again and again."""
    shell.worker = "exit 0"
    done = shell.run(training(shell))
    assert (done.code, requeued(done)) == (0, False)


@pytest.mark.parametrize(
    ("program", "env", "runs"),
    [
        (["python", "x.py"], [], False),
        (["bash", "-c", "exec python x.py --seed $SLURM_JOB_ID"], [], False),
        (["python", "x.py"], ["DSRUN_GPUS=0"], True),
        (["./x"], [], True),
        (["bash", "-c", "source env/bin/activate; python x.py"], [], True),
        (["bash", "-c", "apptainer exec --nv x.sif python x.py"], [], True),
    ],
)
def test_node_without_its_gpus_ends_the_job(shell, program, env, runs):
    """Without a supervisor the node asks the workers' Python. The stand-in is a torch that sees one GPU."""
    shell.put(
        "python",
        'case $* in -c*) [ "${@: -1}" -le 1 ] || exit 4; exit 0 ;; esac\ntouch "$STAND_INS/began"\nkill -9 $$\n',
    )
    site = ClusterSite(python=shell.python, own_python=shell.python)
    spec = spec_of(nodes="2", gpus_per_node="2", supervise="false", env=env)
    done = shell.run(render_script(spec, any_program(program), site))
    assert (shell.tools / "began").exists() == runs
    assert requeued(done) is False
    assert (done.code == 4) != runs


def test_no_process_is_left_beside_the_command(tmp_path):
    """What waits for a preemption ends with it, also while nobody has taken its exit code, as its number stays."""
    words = f"source {Path(__file__).parents[3]}/slurm/job.bash; pass_on_term; exec sleep 0.2"
    variables = {"PATH": "/usr/bin:/bin", "SLURM_NODEID": "0", "trains": ""}

    def left():
        return [each for each in Path("/proc").glob("[0-9]*/cwd") if os.path.realpath(each) == str(tmp_path)]

    process = subprocess.Popen(["bash", "-c", words], cwd=tmp_path, env=variables)
    try:
        until(lambda: len(left()) > 1, "nothing waits for a preemption")
        until(lambda: not left(), "processes are left")
    finally:
        process.wait()


@pytest.mark.parametrize(
    ("job", "told"),
    [
        (PREEMPTED, True),
        (JOB.replace("RUNNING", "CANCELLED"), True),
        ("", True),  # nobody answers
        (JOB, False),
    ],
)
def test_workers_are_told_of_a_term_that_takes_the_nodes_away(shell, job, told):
    """Not of that by which srun ends the other nodes' tasks when one has failed: a spare node would be told to stop."""
    stop = shell.folder / "stop"
    words = f"source {Path(__file__).parents[3]}/slurm/job.bash; job=12; pass_on_term; "
    words += r"until ((0x$(sed -n 's/^SigCgt:\t//p' /proc/$!/status) >> 14 & 1)); do sleep 0.02; done; kill $!; wait $!"
    (shell.tools / "job").write_text(job)
    variables = {
        "PATH": f"{shell.tools}:/usr/bin:/bin",
        "SLURM_NODEID": "0",
        "trains": "",
        "STAND_INS": str(shell.tools),
    }
    variables |= {"DSRUN_FAILURES": str(shell.folder), "DSRUN_STOP_FILE": str(stop)}
    subprocess.run(["bash", "-c", words], env=variables, timeout=60, check=False)
    assert stop.exists() == told
