"""A job for which nothing was said, and what render-slurm does besides printing a script."""

from __future__ import annotations

import json
import time

import pytest
import yaml

from dsrun.runs.folder import RunFolder
from tests.slurm.jobs import Job, Person

PLAIN = ["--gpus-per-node", "0"]


@pytest.fixture(scope="session")
def from_run_file(ada, tiny):
    """`dsrun render-slurm | sbatch` in a folder with a run.yaml."""
    cwd = ada.folder("with a run file")
    names = [str(word)[2:].replace("-", "_") for word in tiny[::2]]
    train = dict(zip(names, map(str, tiny[1::2]), strict=True)) | {"max_steps": 4, "bf16": False}
    run = {
        "train": train,
        "zero": {"stage": 2},
        "slurm": {"nodes": 1, "gpus_per_node": 0, "job_name": "from a file"},
    }
    (cwd / "run.yaml").write_text(yaml.safe_dump(run))
    job = ada.submit(cwd=cwd)
    return job.wait_for("COMPLETED"), cwd


def test_render_slurm_from_run_file_alone(from_run_file):
    job, cwd = from_run_file
    (folder,) = map(RunFolder, (cwd / "runs").iterdir())
    assert folder.path.name.endswith(f"-{job.id}")
    assert folder.finished.exists()
    assert "JobName=from a file" in job.record()


def test_jobs_shows_run_step_and_loss(ada, from_run_file):
    job, cwd = from_run_file
    listed = json.loads(ada.dsrun("jobs", "--format", "json", cwd=cwd).stdout)
    (entry,) = (each for each in listed["jobs"] if each["id"] == str(job.id))
    assert (entry["name"], entry["state"], entry["finished"]) == ("from a file", "COMPLETED", True)
    assert entry["progress"]["step"] == 4
    assert entry["progress"]["loss"] > 0
    assert entry["run"] == str(next((cwd / "runs").iterdir()))


def test_submit_prints_only_the_job_id(ada, place):
    said = ada.dsrun("render-slurm", *PLAIN, "--submit", "--", "touch", "done", cwd=place).stdout
    job = Job(ada.cluster, int(said), place)
    job.wait_for("COMPLETED")
    assert (place / "done").exists()


def test_follow_shows_log_and_exits_with_job_exit_code(ada, place):
    program = ["bash", "-c", "echo said by $((6 * 7)) >&2; exit 7"]
    done = ada.dsrun("render-slurm", *PLAIN, "--follow", "--", *program, cwd=place, check=False)
    assert done.returncode == 7, done.stderr
    assert done.stdout.strip().isdigit()
    assert "said by 42" in done.stderr


def test_test_only_option_starts_nothing(ada, place):
    """--test-only tells when and where the job would start, and starts nothing."""
    done = ada.dsrun("render-slurm", *PLAIN, "--nodes", 2, "--test-only", "--", "touch", "done", cwd=place)
    assert "node[1-2]" in done.stdout
    time.sleep(1)
    assert not (place / "done").exists()


def test_unknown_account_is_a_warning_where_slurm_takes_it(accounting):
    """AccountingStorageEnforce is not set here."""
    ada = Person(accounting, "ada", accounting.root / "home" / "ada")
    done = ada.dsrun("render-slurm", *PLAIN, "--account", "nobodys", "--", "true")
    assert "note: --account: 'nobodys' is not your account" in done.stderr
    job = ada.sbatch(done.stdout)
    assert job.fact("Account") == "nobodys"
    ada.run("scancel", job.id)
