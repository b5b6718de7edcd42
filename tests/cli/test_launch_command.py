"""`dsrun launch` without starting anything: what it would set and run in each environment."""

from __future__ import annotations

import shlex
import sys

import pytest

ALLOCATION = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_NODELIST": "gpu[03-04]",
    "SLURMD_NODENAME": "gpu03",
    "SLURM_JOB_CPUS_PER_NODE": "16(x2)",
}
STEP = {
    **ALLOCATION,
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
    "SLURM_NODEID": "1",
}


@pytest.fixture
def shown(dsrun, here):
    """What --dry-run shows: the variables set, and the commands as argv."""
    (here / "my_train.py").touch()

    def call(*args):
        done = dsrun("launch", "--dry-run", *args)
        assert done.returncode == 0, done.stderr
        lines = [shlex.split(line) for line in done.stdout.splitlines()]
        exports = dict(line[1].split("=", 1) for line in lines if line[0] == "export")
        return exports, [line for line in lines if line[0] not in ("export", "unset")]

    return call


def agent(shown, *args):
    """The argv of the one agent."""
    _, [command] = shown(*args)
    assert command[:3] == [sys.executable, "-m", "torch.distributed.run"]
    return command[3:]


def program(argv):
    """What follows the agent's own options, those that name the kind of program included."""
    split = argv.index("--")
    return [word for word in argv[:split] if word in ("--module", "--no-python")] + argv[split + 1 :]


def test_launch_on_one_node(shown):
    argv = agent(shown, "--nproc", "3", "my_train.py", "--x", "1")
    assert {"--nnodes=1", "--nproc-per-node=3", "--master-addr=127.0.0.1"} <= set(argv)
    exports, _ = shown("--nproc", "2", "--output", "runs/x", "my_train.py")
    assert exports["DSRUN_OUTPUT"] == "runs/x"
    assert exports["GLOO_SOCKET_IFNAME"] == "lo"
    assert int(exports["OMP_NUM_THREADS"]) >= 1


def test_launch_keeps_omp_num_threads_of_user(shown, environ):
    environ["OMP_NUM_THREADS"] = "7"
    assert "OMP_NUM_THREADS" not in shown("my_train.py")[0]


@pytest.mark.parametrize(
    ("given", "runs"),
    [
        (["my_train.py", "--x", "1"], ["my_train.py", "--x", "1"]),
        (["--", "my_train.py", "--nproc", "1"], ["my_train.py", "--nproc", "1"]),
        (["python", "my_train.py", "-h"], ["my_train.py", "-h"]),
        (["--", "python", "-m", "pack.age", "a b"], ["--module", "pack.age", "a b"]),
        (["--", "-m", "pack.age", "--help"], ["--module", "pack.age", "--help"]),
        (["bash", "-c", "exit 3"], ["--no-python", "bash", "-c", "exit 3"]),
    ],
)
def test_launch_program_kinds(shown, given, runs):
    assert program(agent(shown, *given)) == runs


def test_launch_with_another_python(shown, here):
    other = here / "env" / "bin" / "python"
    other.parent.mkdir(parents=True)
    other.symlink_to(sys.executable)
    argv = program(agent(shown, str(other), "my_train.py", "--x"))
    assert argv == ["--no-python", str(other), "-u", "my_train.py", "--x"]


def test_launch_takes_over_torchrun_arguments(shown):
    line = [
        "--nnodes=2",
        "--node-rank=1",
        "--nproc_per_node",
        "3",
        "--rdzv-endpoint=127.0.0.1:3000",
        "--max-restarts=1",
    ]
    argv = agent(shown, "--", "torchrun", *line, "my_train.py", "--x", "$$HOME")
    assert {"--nnodes=2", "--node-rank=1", "--nproc-per-node=3", "--master-port=3000"} <= set(argv)
    assert program(argv) == ["my_train.py", "--x", "$$HOME"]
    train = ["--module", "--", "dsrun.train", "--model", "demo-t5"]
    argv = agent(shown, "--", sys.executable, "-m", "torch.distributed.run", *train)
    assert program(argv) == ["--module", "dsrun.train", "--model", "demo-t5"]


def test_signals_of_own_training_cannot_be_left_to_it(dsrun):
    """Its supervisor would not have it save."""
    done = dsrun("launch", "--no-signals", "--", "dsrun", "train", "--model", "demo-t5")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--no-signals: dsrun train saves on signals" in done.stderr


def test_amd_gpus_are_left_to_the_program(shown, environ):
    """Its accelerator is not the CPU because NVIDIA's driver lists no GPUs."""
    assert shown("my_train.py")[0]["DS_ACCELERATOR"] == "cpu"
    environ["ROCR_VISIBLE_DEVICES"] = "0,1"
    assert "DS_ACCELERATOR" not in shown("my_train.py")[0]


def test_launch_refuses_conflicting_torchrun_arguments(dsrun):
    done = dsrun("launch", "--nproc", "2", "--", "torchrun", "--nproc-per-node=3", "x.py")
    assert done.returncode == 2
    assert "--nproc 2 for dsrun launch, but 3 for torchrun" in done.stderr


@pytest.mark.parametrize(
    "argv",
    [
        ["dsrun", "train"],
        ["-m", "dsrun.train"],
        ["python", "-m", "dsrun.train"],
        ["python", "-m", "dsrun", "train"],
    ],
)
def test_launch_of_dsrun_train(shown, argv):
    given = ["--model", "demo-t5", "--output", "runs/x", "--global-batch-size", "8"]
    assert program(agent(shown, "--nproc", "2", "--", *argv, *given)) == ["--module", "dsrun.train", *given]


def test_launch_output_flag_reaches_dsrun_train(dsrun):
    train = ["dsrun", "train", "--model", "demo-t5"]
    done = dsrun("launch", "--dry-run", "--nproc", "2", "--output", "runs/y", "--", *train)
    assert "export DSRUN_OUTPUT=runs/y" in done.stdout.splitlines()


def test_launch_global_batch_must_divide_by_world_size(dsrun):
    nodes = ["--nodes", "3", "--node-rank", "0", "--master-addr", "gpu1"]
    train = ["dsrun", "train", "--model", "demo-t5", "--global-batch-size", "16"]
    done = dsrun("launch", "--dry-run", *nodes, "--", *train)
    assert done.returncode == 2
    assert "16" in done.stderr


def test_launch_with_node_rank_and_master_addr(shown):
    argv = agent(
        shown,
        "--nodes",
        "2",
        "--node-rank",
        "1",
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        "3000",
        "my_train.py",
    )
    assert {"--nnodes=2", "--node-rank=1", "--master-addr=127.0.0.1", "--master-port=3000"} <= set(argv)


def test_launch_within_slurm_task(shown, environ):
    environ.update(STEP)
    argv = agent(shown, "my_train.py")
    assert {"--nnodes=2", "--node-rank=1", "--master-addr=gpu03"} <= set(argv)


def test_launch_in_slurm_allocation_runs_srun_per_node(shown, environ):
    """In the shell of a job, launch starts itself once per node through srun."""
    environ.update(ALLOCATION)
    exports, [command] = shown("--nproc", "8", "--max-restarts", "1", "--no-warm", "--", "my_train.py", "--x", "1")
    assert exports == {}
    split = command.index(sys.executable)
    assert {"--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=16"} <= set(command[:split])
    assert command[0] == "srun"
    tail = ["--nproc", "8", "--max-restarts", "1", "--rendezvous-timeout", "600.0", "--no-warm"]
    assert command[split:] == [
        sys.executable,
        "-m",
        "dsrun",
        "launch",
        *tail,
        "--",
        "my_train.py",
        "--x",
        "1",
    ]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--nodes", "2", "x.py"], "--nodes 2, but not which of them this is"),
        (["--include", "gpu1", "x.py"], "--include needs a hostfile"),
        (["--hang-timeout", "nan", "x.py"], "'nan' is not a number"),
        (["--rendezvous-timeout", "NaN", "x.py"], "'NaN' is not a number"),
        (["--nproc", "many", "x.py"], "'many' is neither auto nor a number"),
        (["missing.py"], "there is no file missing.py"),
        (["python", "missing/x.py"], "there is no file missing/x.py"),
        (["bash", "-c", "accelerate launch x.py"], "would start all of them again"),
        (["--", "-m", "dsrun", "plan"], "only train can be launched"),
        (["--tied", "x.py"], "--tied is for dsrun launch itself"),
        ([], "Missing argument"),
    ],
)
def test_launch_usage_errors_are_one_line(dsrun, args, says):
    done = dsrun("launch", *args)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_launch_inside_worker_is_refused(dsrun, environ, here):
    (here / "x.py").touch()
    environ.update({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"})
    done = dsrun("launch", "x.py")
    assert done.returncode == 2
    assert "this process is worker 0 of a run already" in done.stderr
