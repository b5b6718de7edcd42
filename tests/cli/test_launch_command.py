"""`dsrun launch` without starting anything: what it would set and run in each environment."""

from __future__ import annotations

import shlex
import socket
import subprocess
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


def test_launch_over_ssh_with_hostfile_include(dsrun, here, environ):
    (here / "hosts").write_text("gpu1 slots=4\nme@gpu2 slots=2\ngpu3 slots=4\n")
    (here / ".deepspeed_env").write_text("MINE=mine\n")
    (here / "my_train.py").touch()
    environ["HF_TOKEN"] = "very-secret"
    done = dsrun("launch", "--dry-run", "--hostfile", "hosts", "--include", "gpu1:1,3@gpu2", "my_train.py", "a b")
    first, second = (shlex.split(line) for line in done.stdout.splitlines())
    assert (first[0], first[-2], second[-2]) == ("ssh", "gpu1", "me@gpu2")
    there = shlex.split(first[-1])
    assert str(here) in there
    assert "--nodes 2 --node-rank 0 --master-addr gpu1 --master-port 29500 --nproc 2" in shlex.join(there)
    assert there[-3:] == ["--", "my_train.py", "a b"]
    assert "--node-rank 1 --master-addr gpu1" in second[-1]
    # By name only: everybody on a machine can read its command lines.
    named = set(done.stderr.replace(",", " ").split())
    assert {"CUDA_VISIBLE_DEVICES", "DSRUN_SECRET", "HF_TOKEN", "MINE"} <= named
    assert "very-secret" not in done.stdout + done.stderr


def test_launch_in_pbs_job_starts_itself_over_ssh(dsrun, here, environ):
    """Here directly and elsewhere over ssh, with all GPUs of each."""
    (here / "nodes").write_text(f"{socket.gethostname()}\ngpu2\n")
    (here / "my_train.py").touch()
    environ |= {"PBS_JOBID": "7.server", "PBS_NODEFILE": str(here / "nodes")}
    done = dsrun("launch", "--dry-run", "--master-addr", "ib1", "--master-port", "1234", "my_train.py")
    assert "over ssh from this machine, 2 of PBS job 7.server" in done.stderr
    first, second = (shlex.split(line) for line in done.stdout.splitlines())
    flags = "--tied --nodes 2 --node-rank {} --master-addr ib1 --master-port 1234 --rendezvous-timeout"
    assert flags.format(0) in shlex.join(first)
    assert (second[0], second[-2]) == ("ssh", "gpu2")
    assert flags.format(1) in second[-1]


def test_train_in_only_pod_of_job_starts_ranks(dsrun, environ):
    """RANK and WORLD_SIZE count pods there; of several, each would train alone."""
    pod = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "job-master-0", "KUBERNETES_SERVICE_HOST": "10.96.0.1"}
    environ |= pod
    args = ("train", "--model", "demo-t5", "--dry-run")
    done = dsrun(*args)
    assert (done.returncode, "torch.distributed.run" in done.stdout) == (0, True), done.stderr
    environ["WORLD_SIZE"] = "2"
    done = dsrun(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert "a pod of Kubernetes, one of 2" in done.stderr
    assert "dsrun launch -- dsrun train" in done.stderr


def test_supervisor_over_ssh_does_not_look_for_jobs(here, environ):
    """The one machine of a hostfile was chosen, whatever the job has."""
    (here / "my_train.py").touch()
    environ |= {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": f"{socket.gethostname()} 8 gpu2 8"}
    words = [sys.executable, "-m", "dsrun", "launch", "--tied", "--dry-run", "--nproc", "1", "--", "my_train.py"]
    child = subprocess.Popen(
        words, cwd=here, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    child.stdin.write('{"env": {}}\n')
    child.stdin.flush()  # and held open: its end means that the machine it was started from is lost
    code = child.wait(timeout=300)
    printed, said = child.communicate()
    assert (code, "--nnodes=1 " in printed) == (0, True), said


def test_launch_on_other_machine_of_job_is_refused(dsrun, here, environ):
    """As by the scheduler's own tool for starting a command on each machine: each would start all."""
    (here / "my_train.py").touch()
    environ |= {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": f"gpu1 8 {socket.gethostname()} 8"}
    done = dsrun("launch", "--dry-run", "my_train.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert "LSF job 7 begins on gpu1, and this is another of its 2 machines" in done.stderr


def test_launch_node_0_of_mpirun_must_be_first_of_list(dsrun, here, environ):
    """The others would wait for it on another machine."""
    (here / "my_train.py").touch()
    mpi = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    environ |= {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "gpu1 8 gpu2 8", **mpi}
    done = dsrun("launch", "--dry-run", "my_train.py")
    assert done.returncode == 2
    assert "the list of the job begins with gpu1, which is another machine (--master-addr " in done.stderr


def test_launch_invalid_hostfile_names_line(dsrun, here):
    (here / "hosts").write_text("gpu1 slots=4\ngpu1 slots=4\n")
    (here / "my_train.py").touch()
    done = dsrun("launch", "--hostfile", "hosts", "my_train.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert "hosts:2: gpu1 is already in line 1" in done.stderr


def test_launch_hostfile_with_localhost_is_refused(dsrun, here):
    """The name localhost would mean another machine on each node."""
    (here / "hosts").write_text("localhost slots=1\ngpu2 slots=1\n")
    (here / "my_train.py").touch()
    done = dsrun("launch", "--dry-run", "--hostfile", "hosts", "my_train.py")
    assert done.returncode == 2
    assert "localhost is a different machine for each of them" in done.stderr


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
        (["accelerate", "launch", "x.py"], "would start all of them again"),
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
