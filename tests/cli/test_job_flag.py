"""--job of `dsrun stacks`, `doctor` and `monitor`, and `jobs ID`, where SLURM's programs are stand-ins."""

from __future__ import annotations

import json
import stat
import sys

import pytest

from tests.slurm_recordings import recorded, stand_in

COMMANDS = [["stacks", "--job"], ["doctor", "--job"], ["monitor", "--once", "--job"]]
UNKNOWN = ("", "slurm_load_jobs error: Invalid job id specified\n", 1)
NOT_THERE = "srun: error: Unable to create step for job 62: Requested nodes are busy"
# Each task has the environment that srun gives it; its lines bear its number, and the second one may not answer.
SRUN = """\
#!{python}
import os, subprocess, sys
words = sys.argv[1:]
count = int(next(word for word in words if word.startswith("--ntasks=")).partition("=")[2])
command = words[words.index({python!r}):]
for task in {tasks!r}:
    names = dict(SLURM_JOB_ID="62", SLURM_STEP_ID="1", SLURM_STEP_NUM_TASKS=str(count))
    names |= dict(SLURMD_NODENAME=f"node{{task + 1}}", SLURM_STEP_NODELIST="node[1-2]", SLURM_PROCID=str(task))
    names |= dict(SLURM_NTASKS=str(count), SLURM_LOCALID="0")
    names |= {{"NCCL_DEBUG": "TRACE"}} if task else {{}}
    done = subprocess.run(command, env=os.environ | names, stdout=subprocess.PIPE, text=True)
    for line in done.stdout.splitlines():
        print(f"{{task}}: {{line}}")
sys.exit({error!r})
"""


@pytest.fixture
def queue(programs):
    """Has squeue answer with job 62 in this state, once or as so many tasks of an array; sacct knows nothing."""

    def answer(state: str, *, reason: str = "None", tasks: int = 0, nodes: str = "node[1-2]") -> None:
        rows = ""
        for label in [f"62_{task}" for task in range(tasks)] or ["62"]:
            times = ["2026-11-21T09:08:55"] * 3
            row = [label, "62", state, reason, "gpu", nodes, "2", "0:03", "1:00:00", *times, "/nowhere", "a job"]
            rows += "\x1f".join(row) + "\x1e\n"
        stand_in(programs, "squeue", ("--format=%T", state), ("--jobs=62", rows), ("--jobs", *UNKNOWN))

    text = recorded("job")
    script = ("write batch_script", "#!/bin/bash\nsleep 1\n")
    stand_in(programs, "scontrol", ("show job 62", text), script, ("show job", *UNKNOWN))
    stand_in(programs, "sacct", ("", ""))
    answer("RUNNING")
    return answer


@pytest.fixture
def srun(programs):
    """Has srun start tasks of the numbers `tasks`, and then fail with `error`, or not."""

    def write(tasks: list[int], error: str | None = None) -> None:
        path = programs / "srun"
        path.write_text(SRUN.format(python=sys.executable, tasks=tasks, error=error))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    return write


@pytest.mark.parametrize("command", [*COMMANDS, ["jobs"]], ids=lambda words: words[0])
def test_job_that_is_not_found(dsrun, queue, nowhere, environ, command):
    """Of one kind for all: no ID, an unknown one, and no SLURM."""
    here, environ["PATH"] = environ["PATH"], f"{nowhere.parent / 'programs'}:{environ['PATH']}"
    for word in ("x", "0", "62_x", "٣"):
        done = dsrun(*command, word)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), word
        assert f"{word!r} is not a job ID" in done.stderr
    done = dsrun(*command, "999")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: SLURM knows no job 999 (dsrun jobs lists yours)\n"
    environ["PATH"] = here
    done = dsrun(*command, "62")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (4, "", 1)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_array_whose_task_is_not_named(dsrun, queue, command):
    queue("RUNNING", tasks=3)
    done = dsrun(*command, "62")
    assert (done.returncode, done.stdout) == (2, "")
    assert "62_0, 62_1, 62_2 (name one of them)" in done.stderr


@pytest.mark.parametrize("command", ["stacks", "doctor"])
@pytest.mark.parametrize(
    ("state", "reason"),
    [("PENDING", "Priority"), ("PENDING", "None"), ("SUSPENDED", "None"), ("FAILED", "NonZeroExitCode")],
)
def test_job_that_does_not_run(dsrun, queue, command, state, reason):
    """Something is missing, and may come; `monitor` waits for it."""
    queue(state, reason=reason, nodes="")
    done = dsrun(command, "--job", "62")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (4, "", 1)
    assert state in done.stderr
    assert "(None" not in done.stderr
    assert json.loads(dsrun("monitor", "--job", "62", "--format", "json").stdout)["job"]["state"] == state


def test_stacks_of_a_job_without_a_run(dsrun, queue, here, programs):
    """Its script names no run folder, or one in which there is no run."""
    assert "it is not dsrun's" in dsrun("stacks", "--job", "62").stderr
    script = ("write batch_script", f"#!/bin/bash\nexport DSRUN_OUTPUT={here}/run\n")
    stand_in(programs, "scontrol", ("show job 62", recorded("job")), script)
    done = dsrun("stacks", "--job", "62")
    assert (done.returncode, f"no run in {here}/run" in done.stderr) == (2, True)
    (here / "run").mkdir()
    (here / "run" / "events.jsonl").touch()
    assert "has no status of a supervisor" in dsrun("stacks", "--job", "62").stderr


@pytest.mark.parametrize("words", [[], ["run", "--job", "62"]])
def test_stacks_of_one_run(refused, words):
    assert "--job" in refused("stacks", *words)


def test_doctor_of_the_nodes_of_a_job(dsrun, queue, srun, environ):
    """What is wrong on some has their names, also where this is called in the shell of another job."""
    environ |= {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "99"}
    srun([0, 1])
    words = ["doctor", "--job", "62", "--only", "variables,nofile,port"]
    done = dsrun(*words, "--format", "json")
    said = json.loads(done.stdout)
    assert (said["job"], said["unanswered"]) == ("62", [])
    first, second = said["nodes"]
    assert (first["node"], second["node"]) == ("node1", "node2")
    assert [each["check"] for each in first["checks"]] == ["variables", "nofile"]
    assert [each["checks"][0]["status"] for each in (first, second)] == ["pass", "warn"], first["checks"][0]["findings"]
    table = dsrun(*words)
    assert table.returncode == done.returncode == 0
    rows = [line for line in table.stdout.splitlines() if "left-over variables" in line]
    assert [("node2: " in line, "node1" in line) for line in rows] == [(True, False)]


def test_doctor_where_a_node_does_not_answer(dsrun, queue, srun):
    srun([0], NOT_THERE)
    done = dsrun("doctor", "--job", "62", "--only", "nofile")
    assert (done.returncode, "open files" in done.stdout) == (1, True)
    assert done.stderr.splitlines()[-1].startswith("note: node2: unknown")
    srun([], NOT_THERE)
    done = dsrun("doctor", "--job", "62", "--only", "nofile")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Requested nodes are busy" in done.stderr


@pytest.mark.parametrize(
    "flag", ["--deep", "--preflight", "--ranks=2", "--nodes=2", "--node-rank=0", "--master-port=9"]
)
def test_doctor_of_a_job_leaves_its_gpus_alone(refused, flag):
    assert "--job" in refused("doctor", "--job", "62", flag) or "--master-port" in flag
