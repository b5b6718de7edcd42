"""`dsrun launch --hostfile` through a real sshd on this machine, which stands for two of them."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dsrun.system.net import free_port
from tests.slurm.packages import SEARCHED

SSHD, SSH, KEYGEN = (shutil.which(name, path=SEARCHED) for name in ("sshd", "ssh", "ssh-keygen"))

PROGRAM = """
import os, sys, time
# In one write: with PYTHONUNBUFFERED each word is one, and two machines' would mix.
sys.stdout.write("node {NODE_RANK} rank {RANK} ".format_map(os.environ) + sys.argv[1] + "\\n")
sys.stdout.flush()
if sys.argv[1] == "stay":
    time.sleep(100)
sys.exit(7 * (os.environ["RANK"] == "1"))
"""


@pytest.fixture
def place(tmp_path):
    """A folder with a program and a hostfile; PATH holds an ssh that knows the two names in it."""
    for key in ("host", "user"):
        subprocess.run([KEYGEN, "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / key], check=True)
    port = free_port()
    (tmp_path / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/user.pub\n"
        "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPidFile none\n"
        f"SetEnv HOME={tmp_path}\n"
    )
    # Instead of the .bashrc of whoever runs the tests: one that prints, as many do.
    (tmp_path / ".bashrc").write_text("echo .bashrc was read >&2\n")
    (tmp_path / "ssh_config").write_text(
        f"Host one two\n HostName 127.0.0.1\n Port {port}\n IdentityFile {tmp_path}/user\n IdentitiesOnly yes\n"
        f" StrictHostKeyChecking no\n UserKnownHostsFile {tmp_path}/known\n LogLevel ERROR\n"
    )
    (tmp_path / "bin").mkdir()
    client = tmp_path / "bin" / "ssh"
    client.write_text(f'#!/bin/sh\nexec {SSH} -F {tmp_path}/ssh_config "$@"\n')
    client.chmod(0o755)
    (tmp_path / "hosts").write_text("one slots=1\ntwo slots=1\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    Path("/run/sshd").mkdir(exist_ok=True)  # where Debian's sshd locks its children up
    log = (tmp_path / "sshd.log").open("w")
    server = subprocess.Popen([SSHD, "-D", "-e", "-f", tmp_path / "sshd_config"], stderr=log)
    try:
        _wait(lambda: _answers(client))
        yield tmp_path
    finally:
        server.terminate()
        server.wait()
        log.close()


def launch(place, *args, hosts=("--hostfile", "hosts"), **environ):
    flags = [*hosts, "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    command = [
        sys.executable,
        "-m",
        "dsrun",
        "launch",
        *flags,
        "--max-restarts",
        "0",
        "--",
        "program.py",
        *args,
    ]
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "PATH": f"{place}/bin:{os.environ['PATH']}", "PYTHONPATH": root, **environ}
    return subprocess.Popen(
        command, cwd=place, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip


def left(place):
    """Command lines of the program's processes on either machine."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(place) and "program.py" in (words := process.cmdline()):
                found.append(words)
        except psutil.Error:
            continue
    return found


def test_ssh_launch_runs_every_node_and_returns_exit_code(place):
    """Each node runs its part, and the workers' exit code comes back."""
    done = launch(place, "here")
    _, said = done.communicate(timeout=300)
    lines = said.splitlines()
    assert sorted(line for line in lines if line.startswith("node")) == [
        "node 0 rank 0 here",
        "node 1 rank 1 here",
    ]
    assert done.returncode == 7
    assert lines[-1].startswith("error: the workers failed: rank 1 ended with exit code 7")
    assert "Traceback" not in said
    assert left(place) == []


def test_script_of_pbs_job_runs_on_its_machines(place):
    """The first one is here; PBS has told of the others."""
    (place / "nodes").write_text("127.0.0.1\n127.0.0.1\ntwo\n")
    done = launch(place, "here", hosts=("--nproc", "1"), PBS_JOBID="7.server", PBS_NODEFILE=str(place / "nodes"))
    _, said = done.communicate(timeout=300)
    assert sorted(line for line in said.splitlines() if line.startswith("node")) == [
        "node 0 rank 0 here",
        "node 1 rank 1 here",
    ]
    assert done.returncode == 7
    assert left(place) == []


def test_ssh_launch_killed_leaves_no_process(place):
    """Nothing is left on any node when the first process is killed."""
    run = launch(place, "stay")
    ranks = (line for line in run.stderr if line.startswith("node"))
    assert sorted(itertools.islice(ranks, 2)) == ["node 0 rank 0 stay\n", "node 1 rank 1 stay\n"]
    assert left(place) != []
    run.kill()
    run.communicate()
    _wait(lambda: not left(place))


def _answers(client):
    return subprocess.run([client, "one", "true"], stdin=subprocess.DEVNULL, check=False).returncode == 0


def _wait(condition):
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
