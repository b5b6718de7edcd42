"""The starts of a job that Kubernetes does not count, recorded in the run folder."""

from __future__ import annotations

import pytest

from dsrun.runs.attempts import JobStarts, attempt, earlier_signatures
from dsrun.runs.folder import RunFolder

JOB = {"DSRUN_JOB_UID": "0b1c"}


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(tmp_path / "run").path


def test_job_starts_are_counted_by_job(run):
    """Another job in the same folder is another run."""
    starts = JobStarts(run, JOB)
    assert (starts.count, starts.finished) == (0, False)
    starts.record("began")
    starts.record("began")
    assert (starts.count, starts.finished) == (2, False)
    starts.record("finished")
    assert JobStarts(run, JOB).finished
    other = JobStarts(run, {"DSRUN_JOB_UID": "another"})
    assert (other.count, other.finished) == (0, False)


def test_job_starts_elsewhere_leave_no_trace(run):
    """Without a Kubernetes job nothing is written, and nothing is ever finished."""
    starts = JobStarts(run, {"SLURM_JOB_ID": "7"})
    starts.record("finished")
    assert (starts.count, starts.finished) == (0, False)
    assert list((run / "logs").iterdir()) == []


def test_later_start_of_job_is_a_requeue():
    """A job that begins again knows its own checkpoints, as after a requeue of SLURM."""
    assert earlier_signatures(JOB) == frozenset()
    again = {**JOB, "DSRUN_REQUEUE": "2"}
    assert earlier_signatures(again) == {"job 0b1c"}
    assert attempt(again) == {"attempt": 0, "requeue": 2}
