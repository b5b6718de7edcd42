"""`dsrun launch` in jobs of schedulers, by mpirun and in their scripts, on two machines that both are this one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from dsrun.launch.detection.started import job_port
from dsrun.system.net import port_is_free

pytestmark = pytest.mark.train

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os
from pathlib import Path
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([10.0 ** dist.get_rank()])
dist.all_reduce(total)
Path(f"rank-{dist.get_rank()}").write_text(f"node {os.environ['NODE_RANK']} sum {total.item():g}")
dist.destroy_process_group()
os._exit(0)
"""
# Stands for ssh, which tests/slurm has: it gets options, the machine's name and a command for its shell. Each machine
# has its own /tmp: two daemons of Open MPI 4.1 that make the same session folder at once fail with "File exists".
AGENT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do
    [ "$1" != -o ] || shift
    shift
done
shift
TMPDIR=$(mktemp -d "${0%/*}/XXXX") || exit
export TMPDIR
exec sh -c "$*"
"""
# Debian has both under names of their own. -x: Open MPI passes on no variables but its own.
MPIRUN = {
    "openmpi": (
        "mpirun.openmpi --allow-run-as-root -npernode 1 -H one:1,two:1 -np 2"
        " -x PYTHONPATH -x PBS_JOBID -x PBS_NODEFILE --mca plm_rsh_agent"
    ),
    "mpich": "mpirun.mpich -launcher ssh -ppn 1 -hosts one,two -np 2 -launcher-exec",
}


@pytest.fixture
def agent(tmp_path):
    """ssh, in a folder with the program."""
    (tmp_path / "my_train.py").write_text(PROGRAM)
    agent = tmp_path / "bin" / "ssh"
    agent.parent.mkdir()
    agent.write_text(AGENT)
    agent.chmod(0o755)
    return agent


@pytest.fixture(params=MPIRUN)
def mpirun(request, agent):
    """The words of mpirun with one process per machine."""
    words = MPIRUN[request.param].split()
    if shutil.which(words[0]) is None:
        pytest.skip(f"needs {words[0]}")
    return [*words, str(agent)]


def run(folder, words, *flags, **environ):
    launch = ["-m", "dsrun", "launch", "--nproc", "1", "--output", "run", *flags, "--", "my_train.py"]
    return subprocess.run(
        [*words, sys.executable, *launch],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def job_with_free_ports():
    """The number of a job whose two ports are free."""
    jobs = (f"{os.getpid()}-{number}.server" for number in count())
    return next(each for each in jobs if port_is_free(job_port(each)) and port_is_free(job_port(each) + 1))


def sums(folder):
    return [(folder / f"rank-{rank}").read_text() for rank in (0, 1)]


def test_mpirun_in_pbs_job_trains_on_its_machines(mpirun, tmp_path):
    """mpirun says which node each is, and the job's list where the first one is."""
    (tmp_path / "nodes").write_text("127.0.0.1\n127.0.0.2\n")
    done = run(tmp_path, mpirun, PBS_JOBID=job_with_free_ports(), PBS_NODEFILE=str(tmp_path / "nodes"))
    assert done.returncode == 0, done.stderr
    assert sums(tmp_path) == ["node 0 sum 11", "node 1 sum 11"]
    assert str(tmp_path / "run") in done.stdout
    # Open MPI binds each process to a core, and all ranks with it.
    if len(os.sched_getaffinity(0)) > 1:
        assert ("1 workers here may use 1 of" in done.stderr) == ("openmpi" in mpirun[0])


def test_mpirun_without_list_asks_for_address(mpirun, tmp_path):
    """Outside of jobs nothing says where node 0 is: each process says what to add."""
    done = run(tmp_path, mpirun)
    assert done.returncode != 0
    assert "under mpirun on 2 machines, which does not say where the first one is (--master-addr" in done.stderr
    assert not (tmp_path / "run").exists()


def test_script_of_lsf_job_trains_on_its_machines(agent, tmp_path):
    """Called once, dsrun starts itself on both; the one here, which sees the list as well, starts no others."""
    path = f"{agent.parent}:{os.environ['PATH']}"
    hosts = "127.0.0.1 4 two.invalid 4"
    flags = ("--master-addr", "127.0.0.1")
    done = run(tmp_path, [], *flags, PATH=path, LSB_JOBID=job_with_free_ports(), LSB_MCPU_HOSTS=hosts)
    assert done.returncode == 0, done.stderr
    assert sums(tmp_path) == ["node 0 sum 11", "node 1 sum 11"]
