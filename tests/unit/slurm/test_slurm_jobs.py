"""Jobs from recorded answers of squeue and sacct, and where their runs are."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime

import pytest

from dsrun.cli.slurm.jobs import _row
from dsrun.slurm.jobs.queue import (
    _SACCT,
    _SQUEUE,
    SlurmJob,
    job_environment,
    job_output_folder,
    merge_jobs,
    read_rows,
    shell_word,
    with_output_folders,
)
from dsrun.slurm.jobs.status import explain_reason
from tests.slurm_recordings import recorded


def queued() -> list[SlurmJob]:
    rows = [tuple(row.split("\x1f")) for row in recorded("squeue").split("\x1e\n") if row]
    assert {len(row) for row in rows} == {len(_SQUEUE)}
    return read_rows(rows)


def history() -> list[SlurmJob]:
    rows = [tuple(line.split("\x1f")) for line in recorded("sacct").splitlines()]
    return read_rows((row for row in rows if len(row) == len(_SACCT)), recorded=True)


def by_id(jobs):
    return {job.id: job for job in jobs}


def test_jobs_from_squeue():
    jobs = by_id(queued())
    running = jobs["62"]
    assert (running.name, running.state, running.partition, running.nodes) == (
        "t5 large",
        "RUNNING",
        "gpu",
        "node2",
    )
    assert (running.node_count, running.time_limit, running.reason, running.ended) == (1, "1:00:00", "", "")
    assert running.work_dir == "/home/ada/jobs"
    assert jobs["64"].name == "odd | name, with\nbreaks JobState=FAILED"
    assert jobs["64"].state == "RUNNING"
    assert jobs["68"].reason == "DependencyNeverSatisfied"
    assert jobs["23"].reason == "Job's account not permitted to use this partition (low denies phys including phys)"
    assert jobs["66_3"].number == "66"
    assert jobs["67"].ended == "2026-11-21T09:08:55"


def test_expected_start_of_pending_job_ignored():
    """The expected start of a pending job is not its start."""
    row = [
        "7",
        "7",
        "PENDING",
        "BeginTime",
        "gpu",
        "",
        "1",
        "0:00",
        "1:00",
        "t",
        "2026-11-21T19:26:48",
        "",
        "/w",
        "x",
    ]
    assert read_rows([row])[0].started == ""
    assert read_rows([[*row[:2], "RUNNING", *row[3:]]])[0].started == "2026-11-21T19:26:48"


def test_jobs_from_sacct():
    jobs = by_id(history())
    assert jobs["67"].state == "FAILED"
    assert jobs["69"].state == "CANCELLED"  # "CANCELLED by 0"
    assert jobs["62"].ended == ""
    assert (jobs["60_1"].elapsed, jobs["60_1"].node_count) == ("00:00:03", 1)
    assert jobs["58"].reason == ""  # it had waited for its BeginTime, before it ran and failed


def test_merged_jobs_are_unique_and_sorted():
    """Each job once: running ones first, then the last to end."""
    jobs = merge_jobs(queued(), history())
    assert len({job.id for job in jobs}) == len(jobs)
    states = [job.state for job in jobs]
    assert states[: states.count("RUNNING")] == ["RUNNING"] * states.count("RUNNING")
    assert [job.id for job in jobs if job.state == "RUNNING"] == ["62", "63", "64", "65", "66_2", "66_3"]
    over = [job.ended for job in jobs if job.is_final]
    assert over == sorted(over, reverse=True)
    # The queue's word counts: it has the elapsed time in its own form.
    assert by_id(jobs)["60_1"].elapsed == "0:03"


def test_jobs_since_time_keeps_active_jobs():
    """Old jobs are left out, but never active ones."""
    jobs = by_id(merge_jobs(queued(), history(), since=datetime(2026, 11, 21, 9, 5)))
    assert "8" not in jobs
    assert {"62", "67", "68"} <= jobs.keys()
    assert {job.state for job in merge_jobs(queued(), [], since=datetime(2027, 1, 1))} == {
        "RUNNING",
        "PENDING",
    }


def job(tmp_path, **changes):
    row = dict(
        zip(
            SlurmJob.__dataclass_fields__,
            ("7", "7", "RUNNING", "", "gpu", "n1", 1, "1:00", "", "", "", ""),
            strict=False,
        )
    )
    return SlurmJob(**{**row, "work_dir": str(tmp_path), "name": "t5", **changes})


def write_run(folder, *records, finished=False):
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    if finished:
        (folder / "FINISHED").touch()


def test_pending_reason_unexplained_for_cancelled_job(tmp_path):
    """A cancelled job comes without the advice to release it."""
    waiting = job(tmp_path, state="PENDING", reason="JobHeldUser")
    assert waiting.explained_reason.startswith("JobHeldUser: held by you")
    assert replace(waiting, state="CANCELLED").explained_reason == "JobHeldUser"


def test_default_run_folder_found_without_batch_script(tmp_path):
    """The default run folder is found without asking for the batch script."""
    write_run(tmp_path / "runs" / "t5-7", {"step": 3, "loss": 2.5, "epoch": 0.5}, finished=True)
    (found,) = with_output_folders([job(tmp_path)], lambda number: pytest.fail(f"asked for the script of {number}"))
    assert found.run == str(tmp_path / "runs" / "t5-7")
    assert (found.progress.step, found.progress.loss, found.finished) == (3, 2.5, True)


@pytest.mark.parametrize(
    ("kinds", "cause"),
    [
        ([("training", None), ("failure", "cuda_oom")], "cuda_oom"),
        ([("failure", "nccl_timeout"), ("restart", None)], "nccl_timeout"),
        ([("failure", "nccl_timeout"), ("restart", None), ("start", None)], None),
        ([("failure", None)], "unknown"),
        ([("training", None), ("end", None)], None),
        ([], None),
    ],
)
def test_cause_of_the_failure_that_the_run_ended_with(tmp_path, kinds, cause):
    folder = tmp_path / "runs" / "t5-7"
    write_run(folder)
    events = [{"kind": kind} | ({"cause": cause} if cause else {}) for kind, cause in kinds]
    (folder / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in events))
    (found,) = with_output_folders([job(tmp_path, state="FAILED")], lambda number: None)
    assert found.cause == cause
    assert _row(found)[2] == (f"FAILED ({cause})" if cause else "FAILED")


def test_run_folder_of_odd_job_name_without_batch_script(tmp_path):
    """A job name unfit for a folder is found after the controller has forgotten the script."""
    (tmp_path / "runs" / "t5-large-2-7").mkdir(parents=True)
    (found,) = with_output_folders([job(tmp_path, name='t5 "large"/2')], lambda number: None)
    assert found.run == str(tmp_path / "runs" / "t5-large-2-7")


def test_run_folder_from_batch_script(tmp_path):
    write_run(tmp_path / "out" / "big", {"step": 9, "loss": 1.0})
    script = "#!/bin/bash\nexport DSRUN_OUTPUT=\"$PWD\"/out/'big'\n"
    (found,) = with_output_folders([job(tmp_path)], {"7": script}.get)
    assert found.run == str(tmp_path / "out" / "big")
    assert found.progress.step == 9
    assert not found.finished


def test_array_tasks_share_script_but_not_run_folder(tmp_path):
    """Tasks of an array share a script, but have their own run folders."""
    asked = []

    def script_of(number):
        asked.append(number)
        return recorded("script")

    tasks = [job(tmp_path, id=f"66_{task}", number=number) for task, number in ((1, "72"), (3, "66"))]
    found = with_output_folders(tasks, script_of)
    assert [each.run for each in found] == [str(tmp_path / "runs" / f"t5 large-66_{task}") for task in (1, 3)]
    assert set(asked) == {"66"}
    (waiting,) = with_output_folders([job(tmp_path, id="66_[4-9]")], script_of)
    assert waiting.run is None


def test_job_cancelled_before_start_has_no_run_folder(tmp_path):
    """A job that was cancelled before it began has no run folder."""
    (found,) = with_output_folders(
        [job(tmp_path, state="CANCELLED", nodes="")],
        lambda number: pytest.fail(f"asked for the script of {number}"),
    )
    assert found.run is None


def test_job_without_batch_script_has_no_run_folder(tmp_path):
    (found,) = with_output_folders([job(tmp_path)], lambda number: None)
    assert (found.run, found.progress) == (None, None)


VARIABLES = job_environment(label="66_3", number="72", name="my job") | {"HOME": "/home/ada"}


@pytest.mark.parametrize(
    ("line", "folder"),
    [
        ("export DSRUN_OUTPUT=/data/run", "/data/run"),
        ("export DSRUN_OUTPUT='/data/it'\"'\"'s a run'", "/data/it's a run"),
        ('export DSRUN_OUTPUT="$PWD"/runs/t5-"$job"', "/w/runs/t5-66_3"),
        ('export DSRUN_OUTPUT="runs/x-$SLURM_JOB_ID"', "/w/runs/x-72"),
        ("export DSRUN_OUTPUT=\"$PWD\"/$'a\\nb\\x41'", "/w/a\nbA"),
        ("export DSRUN_OUTPUT='$job'", "/w/$job"),
        ("dsrun train --output ${HOME}/r --model x", "/home/ada/r"),
        ("srun python -m dsrun train --output_dir=out\\ 1 &", "/w/out 1"),
        ("python x.py --output-dir out; echo", "/w/out"),
        ("export DSRUN_OUTPUT=$(date +%F)", None),
        ("export DSRUN_OUTPUT=${OUT:-x}", None),
        ("export DSRUN_OUTPUT=$UNKNOWN/x", None),
        ("#SBATCH --output slurm.log", None),
        ("# dsrun train --output old", None),
        ("echo hello", None),
    ],
)
def test_run_folder_parsed_from_script_line(line, folder):
    assert job_output_folder(f"#!/bin/bash\n{line}\n", work_dir="/w", variables=VARIABLES) == folder


def test_shell_word_matches_bash():
    """Words are expanded as bash expands them."""
    import subprocess

    for text in ("a\\ b'c d'\"e\\\"f\"$'g\\n'", '"$PWD"/x', "'it'\"'\"'s'", "a;b"):
        printed = subprocess.run(
            ["bash", "-c", f"PWD=/w; printf %s {text}"], capture_output=True, text=True, check=False
        )
        assert shell_word(text, {"PWD": "/w"}) == printed.stdout


def test_pending_reasons_in_plain_words():
    assert "other jobs" in explain_reason("Priority")
    assert explain_reason("ReqNodeNotAvail, UnavailableNodes:node3") == explain_reason("ReqNodeNotAvail")
    assert explain_reason("None") is None
