"""Messages of a job on a real cluster: its end is told before SLURM ends what is left of the job's step."""

from __future__ import annotations

import json
from pathlib import Path

# Begins, and once it has been asked to stop leaves as a program does that has saved; the second time it ends well.
SAVES_ON_USR1 = """
import os, signal, sys
from pathlib import Path
if Path("began").exists():
    sys.exit()
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
Path("began").touch()
while True:
    signal.pause()
"""


def teller(place: Path) -> Path:
    """A command that adds each message to a file."""
    tell = place / "tell.sh"
    tell.write_text(f"#!/bin/sh\ncat >> {place}/messages\necho >> {place}/messages\n")
    tell.chmod(0o755)
    return tell


def told(place: Path) -> list[dict]:
    return [json.loads(line) for line in (place / "messages").read_text().splitlines()]


def test_interrupted_job_tells_of_its_requeue(ada, start, place):
    """A signal, the second start and the end; the command that gets them is named when the script is rendered."""
    training = start(place, "--notify", teller(place))
    training.freeze_at(3)
    ada.run("scancel", "--signal=USR1", "--batch", training.job.id)
    training.thaw()
    training.job.wait_for_restart()
    training.job.wait_for("COMPLETED")
    messages = told(place)
    assert [message["kind"] for message in messages] == ["preemption", "requeue", "finish"]
    assert {message["job_id"] for message in messages} == {str(training.job.id)}
    assert messages[1]["requeue"] == 1
    assert messages[2]["step"] == messages[2]["max_steps"]


def test_failed_job_of_another_program_tells_why(ada, place):
    (place / "my_train.py").write_text("raise OSError(28, 'No space left on device')\n")
    options = ("--nodes", "2", "--gpus-per-node", "0", "--nproc", "1", "--notify", teller(place))
    job = ada.submit(*options, program=["python", "my_train.py"], cwd=place)
    job.wait_for("FAILED")
    (message,) = told(place)
    assert (message["kind"], message["cause"]["code"], message["job_id"]) == ("failure", "disk_full", str(job.id))


def test_stopped_program_of_another_kind_is_no_failure(ada, place):
    """It decides itself what the batch script's signal means, and leaves with a code other than 0."""
    (place / "my_train.py").write_text(SAVES_ON_USR1)
    options = ("--nodes", "1", "--gpus-per-node", "0", "--nproc", "1", "--notify", teller(place))
    job = ada.submit(*options, program=["python", "my_train.py"], cwd=place)
    job.until((place / "began").exists, "at work")
    ada.run("scancel", "--signal=USR1", "--batch", job.id)
    job.wait_for_restart()
    job.wait_for("COMPLETED")
    assert [message["kind"] for message in told(place)] == ["preemption", "requeue", "finish"]
