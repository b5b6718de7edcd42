"""What dsrun says of a cluster and of jobs, against the cluster itself; following jobs to their ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.processes import by_name
from tests.slurm.cluster import CHECKOUT
from tests.slurm.jobs import Person
from tests.slurm.machine import SYSTEM_PATH

# As dsrun's own script names the run folder, and writes like a run.
WORKS = """\
#!/bin/bash
#SBATCH --time=10
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-$SLURM_JOB_ID}
export DSRUN_OUTPUT="$PWD"/'my runs'/x-"$job"
mkdir -p "$DSRUN_OUTPUT"
echo "start ${SLURM_RESTART_COUNT:-0}"
echo '{"step": 4, "loss": 1.25}' >>"$DSRUN_OUTPUT/metrics.jsonl"
"""
FOLLOW = """\
import sys
from dsrun.cli.slurm.jobs import follow_job
from dsrun.slurm.jobs.submit import submit
number = submit(sys.stdin.read(), sys.argv[1:])
print("number", number, flush=True)
sys.exit(follow_job(number))
"""


@pytest.fixture(scope="session")
def grace(accounting):
    """A user of the cluster with accounting."""
    return Person(accounting, "ada", accounting.root / "home" / "ada")


def wait(done, seconds=300):
    end = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < end
        time.sleep(0.2)
    return found


def started(person: Person, *words: str, cwd: Path) -> subprocess.Popen[str]:
    """A command of a user's on the login machine, in the background."""
    env = {"PATH": SYSTEM_PATH, "PYTHONPATH": str(CHECKOUT)}
    argv = person.cluster.command(words, user=person.name, cwd=cwd, env=env)
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def python_of(child: subprocess.Popen[str]) -> psutil.Process:
    """The Python behind the wrappers that put it on its machine."""
    return next(each for name, each in by_name(child.pid).items() if name.startswith("python"))


def table(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    return [line.split() for line in done.stdout.splitlines()]


def test_cluster_shows_free_gpus(ada, cluster):
    job = ada.sbatch(
        WORKS + "sleep 500\n", "--partition=brief", "--gpus-per-node=a100:1", "--nodelist=node2", cwd=ada.home
    )
    job.wait_for("RUNNING")
    said = json.loads(ada.dsrun("cluster", "--format", "json").stdout)
    gpus = {node["name"]: node["gpus"][0] for node in said["nodes"]}
    assert sorted(gpus) == ["node1", "node2", "node3", "node4"]
    assert (gpus["node2"]["busy"], gpus["node1"]["busy"]) == (1, 0)
    assert (gpus["node2"]["count"], gpus["node2"]["capability"]) == (2, "8.0")
    assert {each["name"]: each["time_limit_s"] for each in said["partitions"]}["brief"] == 600
    ada.run("scancel", job.id)


def test_jobs_table_shows_step_reached(ada, place):
    job = ada.sbatch(WORKS + "sleep 500\n", "--job-name=it's one", cwd=place)
    job.wait_for("RUNNING")
    metrics = place / "my runs" / f"x-{job.id}" / "metrics.jsonl"
    wait(lambda: metrics.exists() and metrics.read_text())
    (line,) = [row for row in table(ada.dsrun("jobs", cwd=place)) if row[0] == str(job.id)]
    assert line[1:4] == ["it's", "one", "RUNNING"]
    assert line[6:] == ["4", "1.25", "my", f"runs/x-{job.id}"]
    ada.run("scancel", job.id)
    job.wait_for("CANCELLED")
    said = ada.dsrun("jobs", job.id, cwd=place).stdout
    assert "CANCELLED" in said
    assert str(metrics.parent) in said
    assert f"slurm-{job.id}.out" in said


def test_jobs_array_tasks_have_own_runs(ada, place):
    job = ada.sbatch(WORKS, "--array=1-2", cwd=place)
    for task in (1, 2):
        job.task_of(task).wait_for("COMPLETED")
    said = json.loads(ada.dsrun("jobs", job.id, "--format", "json", cwd=place).stdout)
    runs = {each["id"]: Path(each["run"]).name for each in said["jobs"]}
    assert runs == {f"{job.id}_{task}": f"x-{job.id}_{task}" for task in (1, 2)}


def test_finished_jobs_come_from_accounting(grace):
    """Finished jobs come from the accounting when the queue has forgotten them."""
    folder = grace.folder("remembered")
    job = grace.sbatch(WORKS + "exit 3\n", "--job-name=gone", cwd=folder)
    job.wait_for("FAILED")
    forgetful = {"PATH": str(_without_queue(folder))}

    def remembered():
        rows = table(grace.dsrun("jobs", cwd=folder, env=forgetful))
        return [row[:3] for row in rows[1:] if row[0] == str(job.id)]

    # The database learns of it in its own time.
    assert wait(remembered) == [[str(job.id), "gone", "FAILED"]]


def _without_queue(folder: Path) -> Path:
    """SLURM's programs with a queue that is empty."""
    programs = folder / "programs"
    programs.mkdir()
    for name in ("scontrol", "sacct", "sacctmgr"):
        (programs / name).symlink_to(Path("/usr/bin") / name)
    queue = programs / "squeue"
    queue.write_text("#!/bin/sh\nexit 0\n")
    queue.chmod(0o755)
    return programs


def test_follow_through_requeue_to_job_exit_code(ada, place):
    body = 'if [ -z "$SLURM_RESTART_COUNT" ]; then scontrol requeue "$job"; sleep 60; fi\nprintf %s "the end"; exit 7\n'
    done = ada.run(
        sys.executable,
        "-c",
        FOLLOW,
        "--open-mode=append",
        "--job-name=a 'b'",
        input=WORKS + body,
        cwd=place,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    number = done.stdout.split()[1]
    assert "start 0" in done.stdout
    assert done.stdout.endswith("start 1\nthe end\n")
    assert "requeued 1 time so far" in done.stderr
    assert f"job {number}: FAILED" in done.stderr


def test_follow_cancelled_job_and_failing_array_task(ada, place):
    done = ada.run(sys.executable, "-c", FOLLOW, input=WORKS + 'scancel "$job"\nsleep 60\n', cwd=place, check=False)
    assert done.returncode in (143, 137), done.stderr
    assert "CANCELLED" in done.stderr
    done = ada.run(
        sys.executable, "-c", FOLLOW, "--array=1-2", input=WORKS + "exit $((SLURM_ARRAY_TASK_ID * 2 - 2))\n",
        cwd=place, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    number = done.stdout.split()[1]
    assert {f"[{number}_1] start 0", f"[{number}_2] start 0"} <= set(done.stdout.splitlines())


def test_follow_survives_controller_restart(ada, place):
    body = "until [ -e go ]; do sleep 0.2; done; echo survived\n"
    child = started(ada, sys.executable, "-c", FOLLOW, cwd=place)
    child.stdin.write(WORKS + body)
    child.stdin.close()
    assert child.stdout.readline().startswith("number")
    assert child.stdout.readline() == "start 0\n"
    ada.cluster.stop_controller()
    first = child.stderr.readline()
    while "goes on without it" not in first:
        assert first, "it ended"
        first = child.stderr.readline()
    ada.cluster.start_controller()
    (place / "go").touch()
    out, err = child.stdout.read(), child.stderr.read()
    assert child.wait() == 0, err
    assert out == "survived\n"
    assert "the controller answers again" in err


def test_follow_ctrl_c_leaves_job_running(ada, place):
    job = ada.sbatch(WORKS + "sleep 500\n", cwd=place)
    job.wait_for("RUNNING")
    child = started(ada, sys.executable, "-m", "dsrun", "jobs", str(job.id), "--follow", cwd=place)
    assert child.stdout.readline() == "start 0\n"
    python_of(child).send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=300)
    assert f"job {job.id} keeps running" in err
    assert job.state == "RUNNING"
    ada.run("scancel", job.id)


def test_resource_check_agrees_with_sbatch(ada, cluster):
    """What the scheduler would refuse is found before it is submitted."""
    code = (
        "import sys, json\n"
        "from dsrun.slurm.job_check import check\n"
        "from dsrun.slurm.cluster.discover import discover\n"
        "from dsrun.slurm.render.options import SlurmSpec\n"
        "facts = discover()\n"
        "for each in json.load(sys.stdin):\n"
        "    found = [f.code for f in check(SlurmSpec(**each), facts) if f.level == 'error']\n"
        "    print(' '.join(found) or 'fits')\n"
    )
    asked = {
        "--partition=breif": {"partition": "breif"},
        "--gpus-per-node=a100:3": {"gpus_per_node": "a100:3"},
        "--gpus-per-node=h100:1": {"gpus_per_node": "h100:1"},
        "--nodes=5": {"nodes": 5},
        "--mem=900G": {"mem": "900G"},
        "--nodelist=node9": {"nodelist": "node9"},
        "--constraint=fast": {"constraint": "fast"},
        "--nodes=4 --gpus-per-node=a100:2": {"nodes": 4, "gpus_per_node": "a100:2"},
        "--cpus-per-task=2": {"cpus_per_task": 2},
        "--licenses=fluent:3": {"licenses": "fluent:3"},
        "--licenses=fluent:11": {"licenses": "fluent:11"},
        "--licenses=Fluent": {"licenses": "Fluent"},
    }
    # SLURM also refuses what would fit, as long as it takes one of the nodes for down.
    cluster.wait_until_ready(300)
    ours = ada.run(sys.executable, "-c", code, input=json.dumps(list(asked.values()))).stdout.splitlines()
    for (words, _), found in zip(asked.items(), ours, strict=True):
        theirs = ada.run("sbatch", "--test-only", *words.split(), "--wrap=true", check=False)
        assert (theirs.returncode == 0) == (found == "fits"), f"{words}: {found}; {theirs.stderr}"
