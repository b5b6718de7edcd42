"""Commands that take --job, of a job that runs, waits, has ended or is another user's; and jobs of launchers' lines."""

from __future__ import annotations

import json

import pytest

from tests.slurm.jobs import Person
from tests.slurm.test_programs import SHOW, results

WAITS = """\
import pathlib, time
def wait_for_the_end():
    while not pathlib.Path("end").exists():
        time.sleep(0.1)
pathlib.Path(f"ready-{__import__('os').environ['RANK']}").touch()
wait_for_the_end()
"""


@pytest.fixture(scope="session")
def waiting(ada):
    """A job of two nodes with two ranks each, which run until the end."""
    folder = ada.folder("waiting")
    (folder / "x.py").write_text(WAITS)
    options = ["--nodes", 2, "--gpus-per-node", "0", "--nproc", 2]
    job = ada.submit(*options, program=["python", "x.py"], cwd=folder)
    job.until(lambda: len(list(folder.glob("ready-*"))) == 4, "with all ranks")
    yield job
    (folder / "end").touch()
    job.wait_for("COMPLETED")
    # Not in other words than for one that runs.
    assert {ada.dsrun(command, "--job", job.id, check=False).returncode for command in ("stacks", "doctor")} == {4}


@pytest.fixture
def ben(cluster):
    return Person(cluster, "ben", cluster.root / "home" / "ben")


def test_stacks_of_the_ranks_of_a_job(ada, waiting):
    """From the login machine, in a folder that has nothing to do with the job."""
    said = json.loads(ada.dsrun("stacks", "--job", waiting.id, "--format", "json").stdout)
    assert sorted((each["rank"], each["host"]) for each in said["ranks"]) == [
        (2 * node + local, host) for node, host in enumerate(waiting.machines()) for local in (0, 1)
    ]
    assert said["unanswered"] == []


def test_doctor_checks_the_nodes_of_a_job_that_runs(ada, waiting):
    """Beside its ranks, which have all of its cores."""
    done = ada.dsrun("doctor", "--job", waiting.id, "--only", "cores,names,port", "--format", "json")
    said = json.loads(done.stdout)
    assert (said["job"], said["unanswered"]) == (str(waiting.id), [])
    assert [each["node"] for each in said["nodes"]] == waiting.machines()
    assert {tuple(each["check"] for each in node["checks"]) for node in said["nodes"]} == {("names", "cores")}
    table = ada.dsrun("doctor", "--job", waiting.id, "--only", "names").stdout
    assert "node1" in table
    assert waiting.state == "RUNNING"


def test_monitor_of_a_job(ada, waiting):
    said = json.loads(ada.dsrun("monitor", "--job", waiting.id, "--format", "json").stdout)
    assert (said["kind"], said["job"]["id"], said["job"]["state"]) == ("run", str(waiting.id), "RUNNING")
    assert {each["host"] for each in said["nodes"]} == set(waiting.machines())


def test_job_of_another_user(ben, waiting):
    """Who may read its run folder may watch it, and ask nothing of it."""
    for command, why in (("stacks", "as the run's user"), ("doctor", f"job {waiting.id} is ada's")):
        done = ben.dsrun(command, "--job", waiting.id, check=False)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert why in done.stderr
    said = json.loads(ben.dsrun("monitor", "--job", waiting.id, "--format", "json").stdout)
    assert (said["kind"], said["job"]["state"]) == ("run", "RUNNING")


def test_job_that_waits_and_then_is_not_dsruns(ada, ben, place):
    job = ada.sbatch("#!/bin/bash\nsleep 500\n", "--begin=now+1hour", cwd=place)
    for command in ("stacks", "doctor"):
        done = ada.dsrun(command, "--job", job.id, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (4, 1)
        assert "PENDING (BeginTime" in done.stderr
        assert ada.dsrun(command, "--job", 999_999, check=False).returncode == 2
    said = json.loads(ada.dsrun("monitor", "--job", job.id, "--format", "json").stdout)
    assert (said["kind"], said["job"]["state"]) == ("job", "PENDING")
    job.update(StartTime="now")
    job.wait_for("RUNNING")
    for person, why in ((ada, "not dsrun's"), (ben, "as only ada can read its script")):
        done = person.dsrun("stacks", "--job", job.id, check=False)
        assert (done.returncode, why in done.stderr) == (2, True)
    ada.run("scancel", job.id)


def test_doctor_of_a_task_of_an_array(ada, place):
    """Whose steps SLURM knows by another number."""
    job = ada.sbatch("#!/bin/bash\nsleep 500\n", "--array=3-4", cwd=place)
    task = job.task_of(3).wait_for("RUNNING")
    done = ada.dsrun("doctor", "--job", task.name, "--only", "names", "--format", "json")
    assert json.loads(done.stdout)["job"] == task.name
    assert "name one of them" in ada.dsrun("doctor", "--job", job.id, check=False).stderr
    ada.run("scancel", job.id)


LINES = {
    "torchrun": ["torchrun", "--nnodes=2", "--nproc-per-node=2", "--master-port", "29999", "x.py", "--lr", "1"],
    "accelerate": [
        *("accelerate", "launch", "--num_processes", "4", "--num_machines", "2", "--machine_rank", "0"),
        *("--main_process_ip", "nowhere", "--main_process_port", "29999", "--cpu", "x.py", "--lr", "1"),
    ],
    "deepspeed": ["deepspeed", "--num_nodes", "2", "--num_gpus", "2", "x.py", "--lr", "1"],
}


@pytest.mark.parametrize(
    ("launcher", "options"),
    [("torchrun", []), ("accelerate", []), ("deepspeed", []), ("deepspeed", ["--no-supervise"])],
    ids=["torchrun", "accelerate", "deepspeed", "deepspeed-agent"],
)
def test_launcher_line_as_a_job(ada, place, launcher, options):
    """Two nodes of two ranks each, which deepspeed alone tells their number on the command line."""
    (place / "x.py").write_text(SHOW)
    job = ada.submit("--gpus-per-node", 0, *options, program=LINES[launcher], cwd=place)
    job.wait_for("COMPLETED")
    ranks = results(place)
    assert sorted(ranks) == [f"rank--{rank}" for rank in range(4)]
    for rank, facts in ((int(name[-1]), facts) for name, facts in ranks.items()):
        assert (facts["WORLD_SIZE"], facts["LOCAL_WORLD_SIZE"]) == ("4", "2")
        local = [f"--local_rank={rank % 2}"] if launcher == "deepspeed" else []
        assert facts["argv"] == [*local, "--lr", "1"]
    assert "JobName=x\n" in job.record()
