"""Process 1 of a container stays behind as an init, in a process space of its own that the kernel treats as such."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE_S = 120
UNSHARE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
HEAD = """
import os, signal, subprocess, sys, time
from pathlib import Path
from dsrun.system.process.init import leave_init_behind
leave_init_behind()
"""


@pytest.fixture
def container(tmp_path):
    """Starts a program as process 1, after the lines above: `container(text)`."""
    if subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no process space can be made here")
    started = []

    def start(text):
        file = tmp_path / "program.py"
        file.write_text(HEAD + text)
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
        argv = [*UNSHARE, sys.executable, str(file)]
        started.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.communicate()


def first_process(container):
    """The number, here, of process 1 in there."""
    return int(Path(f"/proc/{container.pid}/task/{container.pid}/children").read_text())


@pytest.mark.parametrize(("line", "code"), [("sys.exit(75)", 75), ("os.kill(os.getpid(), signal.SIGKILL)", 137)])
def test_init_ends_with_code_of_its_child(container, line, code):
    """The container's exit code is that of the program, 128 + n where a signal ended it."""
    process = container(line)
    assert process.wait(PATIENCE_S) == code


def test_signal_without_handler_ends_container(container):
    """What has no handler ends the program as it does elsewhere; the kernel would not send it to process 1."""
    process = container("print('ready', flush=True); time.sleep(600)")
    assert process.stdout.readline() == "ready\n"
    os.kill(first_process(process), signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM


def test_signal_reaches_handler_of_the_program(container):
    """A handler of the program's own gets the signal, once."""
    process = container("""
got = []
signal.signal(signal.SIGUSR1, lambda signum, frame: got.append(signum))
signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(len(got)))
print("ready", flush=True)
while True:
    if got:
        print("got", flush=True)
    time.sleep(0.02)
""")
    assert process.stdout.readline() == "ready\n"
    for signum in (signal.SIGUSR1, signal.SIGTERM):
        os.kill(first_process(process), signum)
        if signum == signal.SIGUSR1:
            assert process.stdout.readline() == "got\n"
    assert process.wait(PATIENCE_S) == 1


def test_init_waits_for_orphans_only(container):
    """Orphans leave no zombies, and the program still learns how its own children end."""
    process = container("""
own = subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(3)"])
subprocess.run(["sh", "-c", "for each in 1 2 3; do (true &) ; done"], check=True)
os.waitid(os.P_PID, own.pid, os.WEXITED | os.WNOWAIT)
def zombies():
    states = subprocess.run(["ps", "-A", "-o", "stat="], capture_output=True, text=True).stdout.split()
    return sum(state.startswith("Z") for state in states)
while zombies() > 1:
    time.sleep(0.02)
print(own.wait(), flush=True)
""")
    assert process.communicate(timeout=PATIENCE_S)[0] == "3\n"
