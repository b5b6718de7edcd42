"""--preflight: the doctor runs before the workers, and a node that fails is left out. Run under the real bash."""

from __future__ import annotations

import signal

import pytest

from dsrun.errors import UsageError
from dsrun.launch.program import any_program
from dsrun.slurm.render.job_script import render_script
from dsrun.slurm.render.site import ClusterSite
from tests.unit.slurm.stand_ins import JOB, REQUEUE, requeued, signalled, spec_of, training

# The doctor speaks against second-node, and the workers train to the end.
DOCTOR_FAILS = """\
case " $* " in
    *" doctor "*) echo second-node >"$DSRUN_FAILURES/doctor-exclude"; exit 3 ;;
    *) touch "$DSRUN_OUTPUT/FINISHED" ;;
esac
"""


def doctors(done) -> list[tuple[str, ...]]:
    return [words[words.index("doctor") :] for words in done.of("python") if "doctor" in words]


def test_workers_start_after_a_preflight_that_passes(shell):
    """It runs on all nodes with the requirements, before the supervisors."""
    shell.worker = 'case " $* " in *" doctor "*) ;; *) touch "$DSRUN_OUTPUT/FINISHED" ;; esac'
    done = shell.run(training(shell, preflight="true", nproc="2", min_gpus="2", min_gpu_memory="40"))
    assert done.code == 0
    assert doctors(done) == [
        ("doctor", "--preflight", "--ranks", "2", "--min-gpus", "2", "--min-gpu-memory", "40"),
    ]
    first, second = done.of("python")
    assert "doctor" in first
    assert "launch" in second


def test_without_preflight_no_doctor_runs(shell):
    shell.worker = DOCTOR_FAILS
    done = shell.run(training(shell))
    assert (done.code, doctors(done)) == (0, [])


def test_node_that_fails_is_excluded_twice_and_then_the_job_fails(shell):
    """At most twice the job goes back into the queue; the third time it ends with the doctor's exit code. What an
    earlier job of this number has left behind in the folder does not count."""
    shell.worker = DOCTOR_FAILS
    script = training(shell, preflight="true")
    for restart in (0, 1, 0, 1, 2):
        shell.variables["SLURM_RESTART_COUNT"] = str(restart)
        shell.job = JOB.replace("   JobState", f"   Restarts={restart} ExcNodeList=(null)\n   JobState")
        done = shell.run(script)
        assert len(done.of("python")) == 1  # no worker has started
        if restart < 2:
            assert (done.code, done.of("scontrol").count(REQUEUE)) == (0, 1)
            assert ("update", "JobId=12", "ExcNodeList=second-node") in done.of("scontrol")
            assert "preflight: second-node failed: requeued without second-node" in done.stderr
        else:
            assert (done.code, requeued(done)) == (3, False)
            assert "preflight: second-node failed, in start 3" in done.stderr


def test_preflight_that_accuses_no_node_fails_the_job(shell):
    """What fails on all nodes would fail again."""
    shell.worker = 'case " $* " in *" doctor "*) exit 3 ;; *) touch "$DSRUN_OUTPUT/FINISHED" ;; esac'
    done = shell.run(training(shell, preflight="true"))
    assert (done.code, requeued(done)) == (3, False)
    assert len(done.of("python")) == 1


def test_no_requeue_fails_at_the_first_preflight(shell):
    shell.worker = DOCTOR_FAILS
    done = shell.run(training(shell, preflight="true", requeue="false"))
    assert (done.code, requeued(done)) == (3, False)


def test_signal_during_preflight_requeues(shell):
    """A job that is stopped while it is checked goes back into the queue, and starts no worker."""
    shell.worker = 'until [ -e "$DSRUN_STOP_FILE" ]; do sleep 0.02; done; exit 143'
    done = signalled(shell, training(shell, preflight="true"), signal.SIGUSR1)
    assert (done.code, requeued(done), len(done.of("python"))) == (0, True, 1)


def test_requirements_need_preflight(shell):
    with pytest.raises(UsageError, match="without --preflight"):
        training(shell, min_gpus="2")


def test_image_without_dsrun_refuses_preflight(shell):
    with pytest.raises(UsageError, match="the image need not have dsrun"):
        render_script(spec_of(preflight="true", apptainer="x.sif"), any_program(["python", "x.py"]), ClusterSite())
