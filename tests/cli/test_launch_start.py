"""`dsrun launch` that does not start: ports in use, nodes that are missing, signals during start-up."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from dsrun.runs.records import read_records
from tests.ports import free_ports


def test_rendezvous_timeout_names_missing_node(dsrun, here):
    """A node that never comes is named and recorded."""
    flags = [
        "--nodes",
        "2",
        "--node-rank",
        "0",
        "--master-addr",
        "127.0.0.1",
        "--rendezvous-timeout",
        "1",
        "--output",
        "run",
    ]
    # The supervisors take the port behind it.
    done = dsrun("launch", *flags, "--master-port", str(free_ports(2)), "--", "true")
    assert done.returncode == 1
    assert "node 1 did not join within 1 s" in done.stderr
    (event,) = read_records(here / "run" / "events.jsonl")
    assert (event["kind"], event["cause"], event["exit_code"]) == ("failure", "rendezvous_timeout", 1)


@pytest.mark.parametrize("nodes", [[], ["--nodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1"]])
def test_launch_port_in_use_names_master_port_flag(dsrun, nodes):
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = dsrun("launch", *nodes, "--master-port", port, "--output", "run", "--", "true")
    assert done.returncode == 2
    assert f"port {port} is taken" in done.stderr
    assert "(--master-port " in done.stderr
    assert "--find-port" not in done.stderr


@pytest.mark.parametrize("args", [["train", "--config", "pipe"], ["launch", "--hostfile", "pipe", "--", "true"]])
def test_sigterm_before_start_exits_75(here, environ, args):
    """A signal before anything has begun means: run the same command again."""
    os.mkfifo(here / "pipe")
    argv = [sys.executable, "-m", "dsrun", *args]
    with subprocess.Popen(argv, cwd=here, env=environ, stderr=subprocess.PIPE, text=True) as child:
        # Open not before it reads there, and closed before it has to end: a signal that comes between Python's last
        # look for one and the reading itself is heeded when there is nothing more to read.
        with (here / "pipe").open("w"):
            child.send_signal(signal.SIGTERM)
        _, stderr = child.communicate(timeout=60)
    assert (child.returncode, stderr) == (
        75,
        "note: SIGTERM came before the run started: the same command starts it\n",
    )


def test_launch_missing_program(dsrun, here):
    done = dsrun("launch", "--output", "run", "--", "no-such-program")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == "error: there is no program no-such-program (-- PROGRAM ARGS, with its path)\n"
    assert not (here / "run").exists()


def test_launch_gives_reason_for_no_restart(dsrun):
    """The error says why a user's program is not started again."""
    done = dsrun("launch", "--nproc", "1", "--output", "run", "--", "sh", "-c", "exit 3")
    assert done.returncode == 3
    assert "error: rank 0 ended with exit code 3\n" in done.stderr
    assert "configuration or usage error; not restarted" in done.stderr
