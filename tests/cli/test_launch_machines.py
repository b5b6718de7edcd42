"""`dsrun launch` on several machines: what starts where, by a hostfile, a scheduler's list and other launchers."""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys


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


def test_elastic_range_says_how_many_nodes_there_are(dsrun, here):
    (here / "my_train.py").touch()
    flags = ("--elastic", "2:3", "--node-rank", "2", "--master-addr", "gpu1", "--nproc", "1")
    done = dsrun("launch", "--dry-run", *flags, "my_train.py")
    assert (done.returncode, "node 2 of 3" in done.stderr) == (0, True), done.stderr
    assert "--nnodes=3" in done.stdout


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
