"""`dsrun jobs` as a user calls it, with the recorded answers of a real cluster."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.slurm_recordings import recorded, stand_in, stand_in_cluster


@pytest.fixture
def cluster(programs, here):
    """The recorded cluster, with one job's run folder below the current folder."""
    stand_in_cluster(programs)
    for name in ("squeue", "scontrol", "sacct"):
        path = programs / name
        path.write_text(path.read_text().replace("/home/ada/jobs", str(here)))
    run = here / "runs" / "t5 large-62"
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text(
        '{"step": 40, "loss": 2.345678, "epoch": 0.5, "time": "2026-11-21T09:09:00Z"}\n{"st'
    )
    return programs


def test_jobs_table(dsrun, cluster):
    done = dsrun("jobs", "--hours", "999999")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["JOB", "NAME", "STATE", "TIME", "NODES", "STEP", "LOSS", "RUN"]
    first = next(line for line in lines if line.startswith("62 "))
    assert first.split() == [
        "62",
        "t5",
        "large",
        "RUNNING",
        "0:03",
        "node2",
        "40",
        "2.346",
        "runs/t5",
        "large-62",
    ]
    assert any("odd | name, with breaks JobState=FAILED" in line and " RUNNING " in line for line in lines)
    assert any(
        line.startswith("68 ") and "PENDING (DependencyNeverSatisfied)" in line and "1 wanted" in line for line in lines
    )
    assert all(line.isprintable() for line in lines)


def test_jobs_json(dsrun, cluster, here):
    done = dsrun("jobs", "--hours", "999999", "--format", "json")
    output = json.loads(done.stdout)
    assert output["version"] == 1
    job = next(each for each in output["jobs"] if each["id"] == "62")
    assert job["run"] == str(here / "runs" / "t5 large-62")
    assert job["progress"] == {"step": 40, "loss": 2.345678, "epoch": 0.5, "time": "2026-11-21T09:09:00Z"}
    assert (job["state"], job["reason"], job["ended"], job["finished"]) == ("RUNNING", None, None, False)
    assert (
        next(each for each in output["jobs"] if each["id"] == "64")["name"]
        == "odd | name, with\nbreaks JobState=FAILED"
    )


def test_jobs_single_job_details(dsrun, cluster, here):
    done = dsrun("jobs", "62")
    assert done.returncode == 0, done.stderr
    output = dict(line.split(":", 1) for line in done.stdout.splitlines())
    assert output["state"].strip() == "RUNNING"
    assert output["log"].strip() == str(here / "slurm-62.out")
    assert output["run"].strip() == str(here / "runs" / "t5 large-62")
    assert output["step"].strip() == "40, epoch 0.50, at 2026-11-21T09:09:00Z"
    assert output["time"].strip() == "0:03 of 1:00:00"


def test_jobs_json_with_nan_loss(dsrun, cluster, here):
    metrics = here / "runs" / "t5 large-62" / "metrics.jsonl"
    metrics.write_text('{"step": 41, "loss": null, "nonfinite": {"loss": "nan"}}\n')
    done = dsrun("jobs", "62", "--format", "json")
    job = json.loads(done.stdout, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))["jobs"][0]
    assert (job["progress"]["step"], job["progress"]["loss"]) == (41, None)
    assert job["nonfinite"] == {"progress.loss": "nan"}
    assert "nan" in dsrun("jobs", "62").stdout


def test_jobs_unknown_job_id(dsrun, cluster):
    done = dsrun("jobs", "999")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: SLURM knows no job 999 (dsrun jobs lists yours)\n"


@pytest.mark.parametrize("args", [["one"], ["--", "-5"], ["1;2"], ["--follow"], ["--hours", "-1"]])
def test_jobs_invalid_arguments(dsrun, cluster, args):
    done = dsrun("jobs", *args)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_jobs_empty_queue(dsrun, programs):
    stand_in(programs, "squeue", ("--me", ""))
    stand_in(programs, "sacct", ("", "", "Slurm accounting storage is disabled\n", 1))
    done = dsrun("jobs")
    assert (done.returncode, done.stdout) == (0, "")
    assert "no jobs" in done.stderr
    assert json.loads(dsrun("jobs", "--format", "json").stdout) == {"version": 1, "jobs": []}


def test_jobs_without_slurm(dsrun, environ):
    environ["PATH"] = "/nowhere"
    done = dsrun("jobs")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("error: there is no SLURM cluster here")
    assert done.stderr.count("\n") == 1


def test_jobs_follow_passes_exit_code_on(dsrun, programs, here):
    log = here / "job.log"
    log.write_text("step 1  loss 2.0\n")
    text = recorded("job-failed").replace("/home/ada/jobs/slurm-67.out", str(log))
    stand_in(programs, "scontrol", ("show job 67", text))
    done = dsrun("jobs", "67", "--follow")
    assert done.returncode == 3
    assert done.stdout == "step 1  loss 2.0\n"
    assert "job 67: FAILED after 00:00:00 exit code 3" in done.stderr


def test_jobs_follow_ctrl_c_leaves_job_running(programs, here, environ):
    """Ctrl-C leaves the job running and says how to cancel it."""
    import signal

    log = here / "job.log"
    log.write_text("working\n")
    text = recorded("job").replace("/home/ada/jobs/slurm-62.out", str(log))
    stand_in(programs, "scontrol", ("show job 62", text))
    command = [sys.executable, "-m", "dsrun", "jobs", "62", "--follow"]
    child = subprocess.Popen(command, cwd=here, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout.readline() == "working\n"
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (130, "")
    assert "job 62 keeps running" in err
    assert "`scancel 62` ends it" in err
    assert "Traceback" not in err
    assert "scancel" not in (programs / "calls").read_text()


def test_jobs_by_state_and_name_with_limit(dsrun, cluster):
    """The list can be narrowed, and what is left out is counted; scripts are read only of what is listed."""
    assert dsrun("jobs", "--hours", "999999", "--state", "r,PD").stdout == (
        dsrun("jobs", "--hours", "999999", "--state", "running,pending").stdout
    )
    for state, fix in (("NOSUCH", "known: "), ("PENDNG", "did you mean PENDING?"), ("", "known: ")):
        refused = dsrun("jobs", "--state", state)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert fix in refused.stderr
    listed = dsrun("jobs", "--hours", "999999", "--state", "running,pending")
    assert all(" RUNNING " in line or " PENDING " in line for line in listed.stdout.splitlines()[1:])
    assert " FAILED " in dsrun("jobs", "--hours", "999999").stdout
    only = dsrun("jobs", "--hours", "999999", "--name", "t5*").stdout.splitlines()
    assert [line.split()[0] for line in only[1:]] == ["62"]
    calls = cluster / "calls"
    calls.unlink(missing_ok=True)
    short = dsrun("jobs", "--hours", "999999", "--limit", "1")
    assert len(short.stdout.splitlines()) == 2
    assert " more are not listed (--limit 1)\n" in short.stderr
    assert calls.read_text().count("batch_script") <= 1
