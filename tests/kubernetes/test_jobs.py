"""Jobs whose pods end by themselves."""

from __future__ import annotations


def test_wrong_file_fails_job_at_once(job, tiny):
    """What another start would not change fails the job, whatever number of failures it allows."""
    program = ["train", *tiny, "--train-file", "/runs/none.jsonl"]
    wrong = job("wrong", "--nodes", 2, "--max-pod-failures", 5, program=program)
    wrong.wait_for("Failed")
    assert 2 in {code for _, code in wrong.codes()}
    assert not wrong.failures


def test_first_process_waits_for_orphans(job):
    """The program ends when none of the processes that it has left to process 1 is a zombie."""
    text = "for each in 1 2 3; do (true &); done; while ps -A -o stat= | grep -q ^Z; do sleep 0.1; done"
    single = job("orphans", program=["bash", "-c", text])
    single.wait_for("Complete")
    assert single.codes() == [(0, 0)]
