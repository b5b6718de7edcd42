"""Signals before a run begins: the command ends, and whatever swallows that, the run does not begin."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from dsrun.launch.context import LocalWorkers, TrainingJob
from dsrun.launch.coordinator.messages import Coordinator, StoppedBeforeStart, decide_without_server
from dsrun.launch.signals import startup_signals
from dsrun.launch.supervisor.policy import AttemptFailure
from dsrun.launch.supervisor.supervise import _Supervision, supervise
from dsrun.runs.folder import RunFolder
from dsrun.runs.heartbeat import StopRequest
from dsrun.runs.manifest import write_manifest

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def heeded():
    """Also where the tests were started under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGHUP"])
def test_signal_before_run_start_exits_with_resume_code(name):
    """A signal before the run begins ends the command with the exit code for resuming."""
    with pytest.raises(StoppedBeforeStart, match=f"{name} came before the run started") as stopped, startup_signals():
        signal.raise_signal(signal.Signals[name])
    assert stopped.value.exit_code == 75


def swallowed(signum):
    """As in code of somebody else's that catches everything."""
    try:
        signal.raise_signal(signum)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("told_first", [True, False])
def test_swallowed_signal_still_reaches_coordinator(told_first):
    """A signal whose exception was swallowed still reaches the coordinator."""
    coordinator = Coordinator()
    with startup_signals() as early:
        if told_first:
            early.forward_to(coordinator)
        assert swallowed(signal.SIGUSR1)
        early.forward_to(coordinator)
        assert coordinator.stop_requested().signal == "SIGUSR1"
        assert not swallowed(signal.SIGUSR1)


@pytest.fixture
def job(tmp_path):
    return TrainingJob(
        topology=LocalWorkers(1, "cpu", 1),
        run=tmp_path / "run",
        program=["--no-python", "touch", str(tmp_path / "begun")],
        env=os.environ,
        external=True,
        warm=False,
    )


def test_no_attempt_started_after_stop_request(job, tmp_path):
    """No attempt begins once the coordinator was told to stop."""
    coordinator = Coordinator()
    coordinator.announce_stop(StopRequest("SIGTERM"))
    outcome = supervise(job, coordinator)
    assert (outcome.exit_code, (tmp_path / "begun").exists()) == (75, False)
    assert outcome.message is not None
    assert "stopped by SIGTERM" in outcome.message
    assert "resumes" not in outcome.message  # what a program saves is not known


def test_interrupted_program_ends_with_a_line(job):
    """After Ctrl-C the last words are the supervisor's, not a traceback."""

    class Interrupted(Coordinator):
        def stop_requested(self):
            if not sent:
                sent.append(os.kill(os.getpid(), signal.SIGINT))

    sent = []
    outcome = supervise(job, Interrupted())
    assert (outcome.exit_code, outcome.message is None) == (130, False)


def test_stopped_run_prints_resume_command(job):
    """A run that was told to stop says how to resume it.

    The same command would begin in a new folder, where it names none, and with --resume of its own from there.
    """
    run = RunFolder(job.run)

    class SavesFirst(Coordinator):
        def stop_requested(self):
            run.checkpoint(5).mkdir(parents=True, exist_ok=True)
            write_manifest(run.checkpoint(5), {"step": 5})
            return StopRequest("SIGTERM")

    def said(coordinator, **fields):
        return str(supervise(replace(job, external=False, **fields), coordinator).message)

    elsewhere = {"again": "the same command with --output here", "resume": "never"}
    coordinator = Coordinator()
    coordinator.announce_stop(StopRequest("SIGTERM"))
    assert said(coordinator, **elsewhere).endswith("the same command with --output here begins where this run began")
    first = "checkpoint-5 is complete; the same command with --output here and --resume auto resumes from there"
    assert said(SavesFirst(), **elsewhere).endswith(first)
    run.checkpoint(5).rename(run.checkpoint(4))
    assert said(SavesFirst(), resume="never").endswith("the same command with --resume auto resumes from there")
    run.checkpoint(4).rename(run.path / "aside")
    assert said(SavesFirst()).endswith("nothing new was saved; the same command begins where this run began")


@pytest.mark.parametrize(
    ("node", "before", "newest", "saved", "words"),
    [
        (0, 0, 5, "checkpoint-5", "saved checkpoint-5; the same command resumes from there"),
        (0, 0, 5, None, "checkpoint-5 is complete; the same command resumes from there"),  # of an earlier attempt
        (0, None, 5, None, "checkpoint-5 is complete; the same command resumes from there"),
        (0, 5, 5, None, "nothing new was saved; the same command begins where this run began"),
        (0, 5, None, None, "what was saved is unknown; the same command goes on"),  # the file server does not answer
        (1, None, None, None, "node 0 says what was saved, and how to go on"),
    ],
)
def test_stopped_run_says_what_is_saved_or_unknown(node, before, newest, saved, words):
    supervision = SimpleNamespace(
        _job=SimpleNamespace(node_rank=node, external=False, resumes=True, again="the same command"),
        _request=lambda: StopRequest("SIGTERM"),
        _newest=lambda: newest,
        _newest_at_first=before,
        _history=[],
    )
    supervision._again = lambda *, resume: _Supervision._again(supervision, resume=resume)
    end = SimpleNamespace(saved=saved, failure_inputs=SimpleNamespace(hang=None))
    assert _Supervision._stopped(supervision, end) == f"stopped by SIGTERM: {words}"
    supervision._request = lambda: None  # the user of another node has ended it
    supervision._history = [AttemptFailure(cause="interrupted", message="node 2 (gpu03) was ended by a signal")]
    assert _Supervision._stopped(supervision, end) == f"node 2 (gpu03) was ended by a signal: {words}"


def test_node_says_that_node_0_was_ended_by_a_signal():
    """Not that it was itself stopped by some signal."""
    left = decide_without_server("gpu01", ended_by_signal=True, given_up="")
    supervision = SimpleNamespace(
        _job=SimpleNamespace(node_rank=1, signals=True),
        _history=[],
        _request=lambda: None,
        _stopped=lambda end: "other",
    )
    assert _Supervision._outcome(supervision, None, left).message == left.why
    supervision._request = lambda: StopRequest("SIGTERM")
    assert _Supervision._outcome(supervision, None, left).message == "other"


def test_failed_run_removes_partial_checkpoint(job):
    """A run that failed leaves no partial checkpoint."""
    left = job.run / ".saving" / "checkpoint-10"
    left.mkdir(parents=True)
    outcome = supervise(replace(job, external=False, program=["--no-python", "sh", "-c", "exit 3"]), Coordinator())
    assert outcome.exit_code == 3
    assert not left.parent.exists()


def test_scratch_folder_locked_against_tmpfiles_cleanup(job, tmp_path, monkeypatch):
    """systemd-tmpfiles passes over what somebody has locked."""
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    locked = []

    class Curious(Coordinator):
        def stop_requested(self):
            for folder in scratch.glob("dsrun-*"):
                fd = os.open(folder, os.O_RDONLY)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    locked.append(folder)
                finally:
                    os.close(fd)
            return StopRequest("SIGTERM")

    supervise(job, Curious())
    assert locked
    assert not locked[0].exists()


def test_signal_after_run_end_is_ignored():
    """A signal after the end of the run changes nothing."""
    with startup_signals() as early:
        early.is_over = True
        signal.raise_signal(signal.SIGTERM)


SECOND = """
import signal
from dsrun.launch.signals import startup_signals
with startup_signals():
    try:
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.raise_signal(signal.SIGTERM)
"""


def test_second_signal_before_run_start_kills_at_once():
    """The second signal before the run begins ends the process at once."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", SECOND], env=env, check=False).returncode == -signal.SIGTERM
