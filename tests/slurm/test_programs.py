"""What a job runs, and how: any program with exactly its words, one task a node, and what SLURM gives it."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.slurm.conftest import GRACE_S
from tests.slurm.jobs import Job

SHOW = """\
import json, os, socket, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "SLURM_PROCID", "MY_VALUE")
names += ("SLURM_GPUS_PER_NODE", "SLURM_MEM_PER_CPU")
facts = {name: os.environ.get(name) for name in names}
facts |= {"argv": sys.argv[1:], "host": socket.gethostname(), "cwd": os.getcwd(), "uid": os.getuid()}
facts["output"] = os.environ["DSRUN_OUTPUT"]
with open(f"rank-{os.environ.get('SLURM_ARRAY_TASK_ID', '')}-{os.environ['RANK']}.json", "w") as file:
    json.dump(facts, file)
"""
ODD = ["it's", 'a "b"', "$(touch pwned)", "`id`", "two\nlines", "", "--d", "$HOME", "ă ț", "*", "a\\b"]

MEET = """\
import os, pathlib, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
pathlib.Path(f"{sys.argv[1]}-{os.environ['RANK']}").touch()
end = time.monotonic() + 200
while len(list(pathlib.Path().glob("job[12]-*"))) < 4 and time.monotonic() < end:
    time.sleep(0.05)
assert time.monotonic() < end, "the other job never ran beside this one"
total = torch.tensor([float(sys.argv[1][-1])])
dist.all_reduce(total)
if os.environ["RANK"] == "0":
    pathlib.Path(f"{sys.argv[1]}.sum").write_text(str(total.item()))
dist.destroy_process_group()
# A thread of gloo may still hold the last tensor, and letting go of it aborts a process that Python takes apart.
os._exit(0)
"""


SAVES = """\
import os, pathlib, signal, sys, time
rank, asked = int(os.environ["RANK"]), []
if sys.argv[1] == "saves":
    signal.signal(signal.SIGUSR1, lambda *_: asked.append(True))
pathlib.Path(f"ready-{rank}").write_text(os.environ["PET_SHUTDOWN_TIMEOUT"])
while not asked and not pathlib.Path("end").exists():
    time.sleep(0.05)
if asked:
    time.sleep(rank)
    pathlib.Path(f"saved-{rank}").touch()
    sys.exit(75)
"""


def results(folder: Path) -> dict[str, dict]:
    return {file.stem: json.loads(file.read_text()) for file in folder.glob("rank-*.json")}


@pytest.fixture(scope="session")
def odd(ada):
    """A job whose name, folder, script, environment and arguments hold blanks, quotes and more: its facts by rank."""
    folder = ada.folder('it\'s a "folder" of $HOME')
    (folder / "my show.py").write_text(SHOW)
    options = [
        "--nodes",
        2,
        "--gpus-per-node",
        "a100:2",
        "--job-name",
        'it\'s "mine"',
        "--log",
        "my log %j.txt",
    ]
    job = ada.submit(
        *options,
        "--env",
        "MY_VALUE=a 'b' $c",
        "--env",
        "DSRUN_GPUS=0",
        program=["python", "my show.py", "--x", "1", *ODD],
        cwd=folder,
    )  # fmt: skip
    job.wait_for("COMPLETED")
    return folder, job, results(folder)


def test_one_rank_per_gpu_of_each_node(odd):
    _, job, ranks = odd
    assert sorted(ranks) == [f"rank--{rank}" for rank in range(4)]
    facts = [ranks[f"rank--{rank}"] for rank in range(4)]
    assert [(f["RANK"], f["LOCAL_RANK"], f["WORLD_SIZE"], f["LOCAL_WORLD_SIZE"]) for f in facts] == [
        ("0", "0", "4", "2"), ("1", "1", "4", "2"), ("2", "0", "4", "2"), ("3", "1", "4", "2"),
    ]  # fmt: skip
    # Ranks follow the nodes' order, and rank 0 is where the rendezvous is.
    assert [f["host"] for f in facts] == [host for host in job.machines() for _ in range(2)]
    # One task a node: torch.distributed.run starts the ranks, SLURM does not.
    assert {f["SLURM_PROCID"] for f in facts} == {"0", "1"}


def test_program_gets_its_arguments_exactly(odd):
    folder, _, ranks = odd
    assert all(facts["argv"] == ["--x", "1", *ODD] for facts in ranks.values())
    assert not (folder / "pwned").exists()


def test_program_runs_under_supervisors(odd):
    """One a node, with a log of its own in the run folder."""
    _, _, ranks = odd
    logs = {path.name.rpartition("launcher")[2] for path in Path(ranks["rank--0"]["output"]).glob("logs/*-launcher*")}
    assert logs == {".log", "-node-1.log"}
    assert {facts["SLURM_GPUS_PER_NODE"] for facts in ranks.values()} == {"a100:2"}
    # The cluster's default, per CPU.
    assert {facts["SLURM_MEM_PER_CPU"] for facts in ranks.values()} == {"1000"}


def test_names_with_quotes_and_spaces(odd):
    """Names with quotes and spaces reach what they name."""
    folder, job, ranks = odd
    assert 'JobName=it\'s "mine"' in job.record()
    assert (folder / f"my log {job.id}.txt").exists()
    assert {facts["cwd"] for facts in ranks.values()} == {str(folder)}
    assert {facts["MY_VALUE"] for facts in ranks.values()} == {"a 'b' $c"}
    assert {Path(facts["output"]).parent for facts in ranks.values()} == {folder / "runs"}


def test_cuda_visible_devices_set_by_slurm(odd):
    _, job, ranks = odd
    assert {facts["CUDA_VISIBLE_DEVICES"] for facts in ranks.values()} == {"0,1"}
    assert job.fact("TresPerNode").endswith("gpu:a100:2")


def test_processes_run_as_submitting_user(odd):
    _, _, ranks = odd
    assert {facts["uid"] for facts in ranks.values()} == {20001}


def test_job_array_runs_each_task_in_own_folder(ada, place):
    """An array runs once for each number, in a folder of its own."""
    (place / "show.py").write_text(SHOW)
    job = ada.submit(
        "--gpus-per-node",
        "0",
        "--array",
        "3,5",
        "--array-flag",
        "--seed",
        program=["python", "show.py"],
        cwd=place,
    )
    for task in (3, 5):
        job.task_of(task).wait_for("COMPLETED")
    ranks = results(place)
    assert {name: facts["argv"] for name, facts in ranks.items()} == {
        "rank-3-0": ["--seed", "3"], "rank-5-0": ["--seed", "5"],
    }  # fmt: skip
    assert len({facts["output"] for facts in ranks.values()}) == 2


@pytest.mark.parametrize(
    "outer",
    [["--mem=2000", "--gpus-per-node=a100:1"], ["--mem-per-cpu=500", "--gpus=1", "--array=3"]],
    ids=["memory", "array"],
)
def test_job_submitted_from_job_ignores_outer_variables(ada, place, outer):
    """sbatch passes on the outer job's variables, which srun would take for wishes."""
    (place / "show.py").write_text(SHOW)
    program = ["python", "show.py"]
    (place / "inner.sh").write_text(ada.render("--gpus-per-node", 0, "--nodes", 2, program=program, cwd=place))
    # The step's own variables are there, too: this is what an interactive session looks like.
    words = "export SLURM_CPU_BIND=quiet,corescores; sbatch --parsable inner.sh >number.new; mv number.new number"
    ada.sbatch(f"#!/bin/bash\nsrun --ntasks=1 bash -c '{words}'\n", "--ntasks=2", *outer, cwd=place)
    number = place / "number"
    end = time.monotonic() + 300
    while not number.exists() and time.monotonic() < end:
        time.sleep(0.1)
    job = Job(ada.cluster, int(number.read_text()), place)
    job.wait_for("COMPLETED")
    assert job.restarts == 0
    ranks = results(place)
    assert sorted(ranks) == ["rank--0", "rank--1"]
    assert {Path(facts["output"]).name for facts in ranks.values()} == {f"show-{job.id}"}


def test_job_dependency_waits(ada, place):
    plain = ["--gpus-per-node", "0"]
    first = ada.submit(*plain, program=["bash", "-c", "until [ -e go ]; do sleep 0.1; done"], cwd=place)
    second = ada.submit(*plain, "--dependency", f"afterok:{first.id}", program=["touch", "second"], cwd=place)
    first.wait_for("RUNNING")
    second.wait_for("PENDING")
    assert second.fact("Reason") == "Dependency"
    (place / "go").touch()
    second.wait_for("COMPLETED")
    assert first.state == "COMPLETED"
    assert (place / "second").exists()


IMPOSSIBLE = {
    "nodes": ["--nodes", "5"],
    "gpus": ["--gpus-per-node", "3"],
    "gpu type": ["--gpus-per-node", "h100:1"],
    "partition": ["--partition", "nowhere"],
    "memory": ["--mem", "1T"],
    "time": ["--partition", "brief", "--time", "1:00:00"],
}
# With these sbatch puts the job into the queue, where it would wait without end.
ACCEPTED = {"nodes": "PartitionConfig", "time": "PartitionTimeLimit"}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_impossible_resources_are_refused_before_submit(ada, what, place):
    """What the cluster cannot give is refused before the job enters the queue."""
    done = ada.dsrun("render-slurm", *IMPOSSIBLE[what], "--", "true", cwd=place, check=False)
    assert done.returncode == 3, done.stderr
    assert done.stdout == ""
    forced = ada.render("--force", *IMPOSSIBLE[what], program=["true"], cwd=place)
    if what in ACCEPTED:
        job = ada.sbatch(forced, cwd=place).wait_for("PENDING")
        job.until(lambda: job.fact("Reason") == ACCEPTED[what], ACCEPTED[what], seconds=60)
        ada.run("scancel", job.id)
    else:
        refused = ada.run("sbatch", input=forced, cwd=place, check=False)
        assert refused.returncode == 1
        assert "error" in refused.stderr


def test_program_exit_code_fails_job_without_requeue(ada, place):
    """A program's exit code makes a failed job that stays so."""
    # A log whose name SLURM fills in on the node only.
    options = ["--gpus-per-node", "0", "--nodes", 2, "--log", "log-%N-%5j.txt"]
    job = ada.submit(*options, program=["bash", "-c", "exit 7"], cwd=place)
    job.wait_for("FAILED")
    assert job.exit_code == 7
    assert job.restarts == 0


@pytest.mark.parametrize("how", ["saves", "ignores"])
def test_signal_reaches_program_under_supervisors(ada, place, how):
    """All ranks may take their time to save; without a handler the program goes on."""
    (place / "x.py").write_text(SAVES)
    options = ["--gpus-per-node", "0", "--nodes", 2, "--nproc", 2, "--no-requeue", "--max-restarts", 1]
    job = ada.submit(*options, program=["python", "x.py", how], cwd=place)
    job.until(lambda: len(list(place.glob("ready-*"))) == 4, "with all ranks")
    ada.run("scancel", "--signal=USR1", "--batch", job.id)
    job.until(lambda: "received USR1" in job.log, "signalled")
    if how == "ignores":
        (place / "end").touch()
        job.wait_for("COMPLETED")
        return
    job.wait_for("FAILED")
    assert job.exit_code == 75
    assert len(list(place.glob("saved-*"))) == 4
    # Longer than the 30 s in which torch's agent would otherwise have them save.
    assert int((place / "ready-0").read_text()) >= 600
    assert "note: the program left with exit code 75 after it was asked to stop" in job.log
    assert "interrupted by USR1 and not finished" in job.log


def test_two_jobs_on_one_node_have_separate_rendezvous(ada, place):
    """Two jobs of one user share a node without meeting."""
    (place / "meet.py").write_text(MEET)
    options = ["--nodelist", "node1", "--gpus-per-node", "0", "--nproc", 2]
    jobs = [ada.submit(*options, program=["python", "meet.py", name], cwd=place) for name in ("job1", "job2")]
    for job in jobs:
        job.wait_for("COMPLETED")
    # Each summed over its own two ranks.
    assert [(place / f"{name}.sum").read_text() for name in ("job1", "job2")] == ["2.0", "4.0"]


def test_cancelled_job_leaves_no_process(ada, place, cluster):
    job = ada.submit("--gpus-per-node", "0", "--nodes", 2, program=["sleep", "1000"], cwd=place)
    job.wait_for("RUNNING")
    machines = job.machines()

    def sleepers() -> list[str]:
        lists = (
            subprocess.run(
                cluster.command(["ps", "-eo", "args"], machine=name),
                capture_output=True,
                text=True,
                check=True,
            ).stdout.splitlines()
            for name in machines
        )
        return [line for lines in lists for line in lines if line == "sleep 1000"]

    job.until(lambda: len(sleepers()) == 2, "with its program on both nodes")
    ada.run("scancel", job.id)
    job.wait_for("CANCELLED")
    job.until(lambda: not sleepers(), "without processes")


@pytest.mark.parametrize(
    ("options", "program"),
    [
        ([], ["train", "--model", "demo-t5", "--zero", "2", "--max-steps", "1"]),
        ([], ["python", "begin.py"]),
        (["--no-supervise"], ["python", "begin.py"]),
    ],
    ids=["train", "supervised", "agent"],
)
def test_job_ends_where_torch_sees_no_gpus(ada, place, options, program):
    """The nodes have SLURM's GPUs, and a torch for CPUs: code 4, no restart, on both nodes at once."""
    (place / "begin.py").write_text("import pathlib; pathlib.Path('began').touch()\n")
    job = ada.submit("--nodes", 2, "--gpus-per-node", "a100:2", *options, program=program, cwd=place)
    job.wait_for("FAILED")
    assert (job.exit_code, job.restarts) == (4, 0)
    assert any(f"{name}: torch sees 0 of the 2 GPUs" in job.log for name in job.machines()), job.log
    assert not (place / "began").exists()


ORIGINAL = """\
#!/bin/bash
#SBATCH --job-name=before --nodes=2 --ntasks-per-node=2 --gpus-per-node=a100:2 --cpus-per-task=1
export DSRUN_GPUS=0 MY_VALUE='${a.b} "c"'
export DSRUN_OUTPUT=x
OUT="$SLURM_SUBMIT_DIR/out put"
srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS python show.py "$OUT" "\\$x" y\\ z'
"""


def test_converted_job_runs_the_same_program(ada, place):
    """Of check-slurm --convert: ranks, places, arguments, variables and GPUs, on the cluster itself."""
    facts = []
    script = ORIGINAL.replace("OUT=", "export OUT=")
    for name in ("before", "after"):
        folder = ada.folder(f"{place.name}-{name}")
        (folder / "show.py").write_text(SHOW)
        (folder / "job.sh").write_text(script)
        if name == "after":
            (folder / "job.sh").write_text(script.replace("export DSRUN_OUTPUT=x\n", ""))
            script = ada.dsrun("check-slurm", "--convert", "job.sh", cwd=folder).stdout
        ada.sbatch(script, cwd=folder).wait_for("COMPLETED")
        facts.append(results(folder))
    before, after = facts
    same = ("argv", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MY_VALUE", "CUDA_VISIBLE_DEVICES", "uid")
    assert sorted(before) == sorted(after) == [f"rank--{rank}" for rank in range(4)]
    for rank, was in before.items():
        argv = [word.replace("-before/", "-after/") for word in was["argv"]]
        assert {key: after[rank][key] for key in same} == {key: was[key] for key in same} | {"argv": argv}


@pytest.mark.parametrize("python", ["with dsrun", "without"])
def test_preempted_program_is_told_at_once(ada, place, python):
    """SLURM tells the batch script's shell when the grace time is over, and the steps when it begins."""
    (place / "x.py").write_text(SAVES)
    options = ["--gpus-per-node", "0", "--nodes", 2, "--nproc", 1, "--no-requeue", "--partition", "back", "--exclusive"]
    if python == "without":
        options += ["--no-supervise"]
    job = ada.submit(*options, program=["python", "x.py", "saves"], cwd=place)
    job.until(lambda: len(list(place.glob("ready-*"))) == 2, "with all ranks")
    nodes = ",".join(job.machines())
    urgent = ada.sbatch(
        "#!/bin/bash\nsleep 1\n", "--partition=urgent", "--exclusive", f"--nodelist={nodes}", "--nodes=2"
    )
    began = time.monotonic()
    job.until(lambda: len(list(place.glob("saved-*"))) == 2, "saved")
    assert time.monotonic() - began < GRACE_S / 2
    urgent.wait_for("COMPLETED")
