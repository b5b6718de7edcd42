"""Supervisors on other machines: small programs stand in for them, and for ssh."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsrun.errors import MissingError
from dsrun.launch import ssh
from dsrun.launch.ssh import RemoteSupervisor, first_line, remote_argv, run_on_hosts, signal_line

ROOT = Path(__file__).parents[3]
FAKES = ROOT / "tests" / "fakes"


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A busy machine may take its time to start and to end a program; each test shortens what it is about."""
    for name in ("_TOGETHER_S", "_LEAVE_S", "_ENDING_S", "_SETTLED_S"):
        monkeypatch.setattr(ssh, name, 600.0)


@pytest.fixture
def remote(tmp_path):
    """A supervisor that is a small program: `remote("name", "sys.exit(3)")`; it appends words to the file `said`."""

    def make(name, source, *, ssh=False):
        begin = f"import os, sys, time\nsaid = open({str(tmp_path / 'said')!r}, 'a', buffering=1)\n"
        argv = (sys.executable, "-c", begin + source)
        if ssh:
            argv = ("ssh", name, " ".join(argv))
        return RemoteSupervisor(name=name, argv=argv, first_line=first_line({"A": name}))

    make.said = lambda: sorted((tmp_path / "said").read_text().splitlines())
    return make


def test_ssh_run_returns_exit_code_of_node_0(remote):
    """The first node's exit code counts, and every supervisor gets its environment."""
    hear = "print(sys.stdin.readline().strip(), file=said)\n"
    remotes = [remote("alpha", hear + "sys.exit(75)"), remote("beta", hear + "sys.exit(75)")]
    assert run_on_hosts(remotes, max_restarts=0, notify=pytest.fail) == 75
    assert remote.said() == ['{"env": {"A": "alpha"}}', '{"env": {"A": "beta"}}']


def test_ssh_run_forwards_signals_to_all_supervisors(remote):
    """Signals go to all supervisors."""
    hear = "sys.stdin.readline(); print(sys.stdin.readline().strip(), file=said)\n"
    tell = f"os.kill({os.getpid()}, {int(signal.SIGUSR1)})\n"
    remotes = [remote("alpha", hear), remote("beta", tell + hear)]
    assert run_on_hosts(remotes, max_restarts=0, notify=pytest.fail) == 0
    assert remote.said() == ['{"signal": "SIGUSR1"}'] * 2


def test_ssh_run_closes_stdin_when_node_0_ends(remote, monkeypatch):
    """Supervisors that are left when the first node ends see the end of their stdin."""
    monkeypatch.setattr(ssh, "_LEAVE_S", 0.2)
    stay = "sys.stdin.read(); print('untied', file=said)"
    assert run_on_hosts([remote("alpha", "sys.exit(1)"), remote("beta", stay)], max_restarts=0, notify=pytest.fail) == 1
    assert remote.said() == ["untied"]


def test_ssh_run_kills_supervisor_that_ignores_stdin_eof(remote, monkeypatch):
    """A supervisor that ignores the end of its stdin is killed."""
    monkeypatch.setattr(ssh, "_LEAVE_S", 0.2)
    monkeypatch.setattr(ssh, "_ENDING_S", 0.2)
    stuck = "print(os.getpid(), file=said); time.sleep(600)"
    wait = "while not os.path.getsize(said.name): time.sleep(0.05)"
    run_on_hosts([remote("alpha", wait), remote("beta", stuck)], max_restarts=0, notify=pytest.fail)
    with pytest.raises(ProcessLookupError):
        os.kill(int(remote.said()[0]), 0)


def test_remote_supervisor_startup_failure_ends_run(remote, monkeypatch):
    """The first node would wait ten minutes for it."""
    monkeypatch.setattr(ssh, "_TOGETHER_S", 0.2)
    said = []
    remotes = [remote("alpha", "sys.stdin.read()"), remote("beta", "sys.exit(4)")]
    assert run_on_hosts(remotes, max_restarts=3, notify=said.append) == 4
    assert said == ["beta: its supervisor ended with exit code 4; without it the run cannot go on"]


def test_unreachable_ssh_host_named(remote, monkeypatch):
    """A machine that ssh cannot reach is named."""
    monkeypatch.setenv("PATH", f"{FAKES}:{os.environ['PATH']}")
    monkeypatch.setattr(ssh, "_TOGETHER_S", 0.2)
    said = []
    remotes = [remote("alpha", "sys.stdin.read()"), remote("unreachable", "", ssh=True)]
    assert run_on_hosts(remotes, max_restarts=3, notify=said.append) == 1
    assert said == ["unreachable: ssh has lost it, or cannot reach it; without it the run cannot go on"]


def test_lost_remote_supervisor_restarted(remote, monkeypatch):
    """A supervisor that is lost later is started again."""
    monkeypatch.setattr(ssh, "_TOGETHER_S", 0.1)
    monkeypatch.setattr(ssh, "_SETTLED_S", 0.0)
    here = f"open({said_file(remote)!r}).read().count('here')"
    wait = f"while {here} < 2: time.sleep(0.05)\n"
    once = f"print('here', file=said)\nif {here} == 1: os.kill(os.getpid(), 9)\nsys.stdin.read()"
    monkeypatch.setattr(ssh, "_LEAVE_S", 0.1)
    said = []
    remotes = [remote("alpha", wait), remote("beta", once)]
    assert run_on_hosts(remotes, max_restarts=5, notify=said.append) == 0
    assert said == ["beta: its supervisor ended with exit code 137; its supervisor is started again"]


def test_ssh_reconnect_retried_until_host_is_back(remote, tmp_path, monkeypatch):
    """A machine that takes its time to come back is waited for.

    As one that starts up anew: ssh does not reach it for minutes.
    """
    for name in ("_TOGETHER_S", "_CALL_S", "_LEAVE_S"):
        monkeypatch.setattr(ssh, name, 0.1)
    # Only the first one has run for long, however slowly the calls after it fail.
    monkeypatch.setattr(ssh._RunningSupervisor, "joined_run", property(lambda each: not each.losses))
    fake_ssh = tmp_path / "ssh"
    fake_ssh.write_text(
        f"#!/bin/sh\ncd {tmp_path}; echo call >> said\n"
        "case $(grep -c call said) in [1234]) exit 255;; *) echo back >> said; cat;; esac\n"
    )
    fake_ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    wait = f"while 'back' not in open({said_file(remote)!r}).read(): time.sleep(0.05)\n"
    said = []
    remotes = [remote("alpha", wait), remote("beta", "", ssh=True)]
    assert run_on_hosts(remotes, max_restarts=1, notify=said.append) == 0
    assert said == ["beta: ssh has lost it, or cannot reach it; its supervisor is started again"]


def said_file(remote):
    argv = remote("x", "").argv
    return argv[2].split("open('")[1].split("'")[0]


def test_missing_launch_program_named(remote):
    """A program that is missing is named."""
    with pytest.raises(MissingError, match="there is no program /no/such"):
        run_on_hosts(
            [RemoteSupervisor(name="a", argv=("/no/such",), first_line=b"")], max_restarts=0, notify=pytest.fail
        )


def test_ssh_command_quoting_survives_login_shell(tmp_path, monkeypatch):
    """Blanks, quotes and dollar signs in words and folders; secrets are not on the command line."""
    folder = tmp_path / "it's a $HOME folder"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{FAKES}:{os.environ['PATH']}")
    words = ["a b", "$HOME", "it's", '"', "*"]
    show = "import json, os, sys; print(json.dumps([os.getcwd(), os.environ['PYTHONPATH'], sys.argv[1:]]))"
    environ = {"PYTHONPATH": "/some where", "HF_TOKEN": "secret"}
    argv = remote_argv("alpha", [sys.executable, "-c", show, *words], folder=str(folder), environ=environ)
    assert "secret" not in " ".join(argv)
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=True)
    assert json.loads(done.stdout) == [str(folder), "/some where", words]


# A process on the other end of the tie, that says what reaches it.
TIED = """
import os, signal, sys, time
from dsrun.launch.ssh import follow_control_stdin
follow_control_stdin()
# It may come while the line below is still being written, and print() does not let itself be interrupted by itself.
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"TERM\\n"))
print(os.environ["WORD"], repr(sys.stdin.read()), flush=True)
while True:
    time.sleep(60)
"""


@pytest.fixture
def tied():
    child = subprocess.Popen(
        [sys.executable, "-c", TIED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    yield child
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()


def say(child, line):
    child.stdin.write(line)
    child.stdin.flush()


def test_control_stdin_delivers_environment_and_signals(tied):
    """A supervisor with a control channel takes environment and signals from stdin."""
    say(tied, first_line({"WORD": "hello"}))
    # Its own stdin, which ranks inherit, is empty.
    assert tied.stdout.readline() == b"hello ''\n"
    say(tied, b"nonsense\n" + signal_line(signal.SIGTERM))
    assert tied.stdout.readline() == b"TERM\n"


def test_control_stdin_eof_kills_supervisor(tied):
    """The end of the control channel ends the supervisor."""
    say(tied, first_line({"WORD": "hello"}))
    tied.stdout.readline()
    tied.stdin.close()
    assert tied.wait(60) == -signal.SIGKILL


def test_control_stdin_reset_kills_supervisor():
    """sshd gives its programs a socket; where it dies with words of theirs unread, they are told of a reset."""
    ours, theirs = socket.socketpair()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with theirs:
        child = subprocess.Popen([sys.executable, "-c", TIED], stdin=theirs, stdout=theirs, env=env)
    try:
        with ours:
            ours.sendall(first_line({"WORD": "hello"}))
            ours.settimeout(60)
            # With PYTHONUNBUFFERED a line comes in pieces, and the child would fail at the next one.
            while not (said := ours.recv(64, socket.MSG_PEEK)).endswith(b"\n"):
                assert said
                time.sleep(0.01)
        assert child.wait(60) == -signal.SIGKILL
    finally:
        child.kill()
        child.wait()


def test_control_stdin_invalid_first_line_refused(tied):
    """A first line without the environment is refused."""
    say(tied, b"hello\n")
    assert tied.wait(60) == 1  # the traceback of a UsageError, which the command line makes a line of
