"""Real children: exit codes, signals passed on, and nobody left behind."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from dsrun.system.process.proc import exit_of, run_foreground, start_time

PATIENCE_S = 120

# A grandchild in a process group of its own, as a compiler below ninja. If asked, it ignores SIGTERM.
GRANDCHILD = """
import os, signal, sys, time, pathlib
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
path = pathlib.Path(sys.argv[1])
path.with_suffix(".new").write_text(str(os.getpid()))
path.with_suffix(".new").rename(path)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def default_signals():
    """Started by nohup or in the background, pytest ignores these, and so would every child."""
    before = {each: signal.getsignal(each) for each in (signal.SIGHUP, signal.SIGINT)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


def until(condition, what):
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"timed out waiting for {what}")


def pid_in(path: Path) -> int:
    return int(until(lambda: path.exists() and path.read_text(), path))


def until_size(path: Path, size: int) -> None:
    until(lambda: path.stat().st_size >= size, path)


def gone(pid: int) -> bool:
    return start_time(pid) is None


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]


def parent_of_grandchild(tmp_path: Path, tail: str, deaf: bool = False) -> list[str]:
    """A child that starts the grandchild, waits until it is there, then does `tail`."""
    code = f"""
import pathlib, subprocess, sys, time, os, signal
code, path, mood = sys.argv[1:]
subprocess.Popen([sys.executable, "-c", code, path, mood], process_group=0)
while not pathlib.Path(path).exists():
    time.sleep(0.02)
{tail}
"""
    return [sys.executable, "-c", code, GRANDCHILD, str(tmp_path / "grandchild"), "deaf" if deaf else "tame"]


def launcher_argv(argv: list[str], *, grace_s: float = 10) -> list[str]:
    code = f"""
import sys
from dsrun.system.process.proc import run_foreground
try:
    sys.exit(run_foreground(sys.argv[1:], grace_s={grace_s}))
except KeyboardInterrupt:
    sys.exit(130)
"""
    return [sys.executable, "-c", code, *argv]


def launcher(argv: list[str], *, grace_s: float = 10) -> subprocess.Popen:
    """A process of its own that runs `argv` in the foreground, as `dsrun build-wheel` does."""
    return subprocess.Popen(launcher_argv(argv, grace_s=grace_s))


@pytest.mark.parametrize(("returncode", "shown"), [(0, 0), (3, 3), (-9, 137), (-15, 143)])
def test_exit_of(returncode, shown):
    assert exit_of(returncode) == shown


def test_foreground_exit_code_and_output(tmp_path):
    with (tmp_path / "out").open("wb") as out:
        code = "import sys; print(sys.argv[1], flush=True); print('error', file=sys.stderr); sys.exit(7)"
        assert run_foreground(python(code, "a b\n'c'"), output=out.fileno()) == 7
    assert (tmp_path / "out").read_text() == "a b\n'c'\nerror\n"


def test_foreground_death_by_signal_is_128_plus_n():
    assert run_foreground(python("import os; os.kill(os.getpid(), 9)")) == 137


def test_foreground_is_stopped_once_it_has_done_enough(tmp_path):
    """With the signal that is asked for; the exit code is its own, and nothing is raised."""
    code = f"""
import pathlib, sys, time
try:
    pathlib.Path({str(tmp_path / "begun")!r}).touch()
    time.sleep({PATIENCE_S})
except KeyboardInterrupt:
    sys.exit(9)
"""
    assert run_foreground(python(code), stop=signal.SIGINT, until=(tmp_path / "begun").exists) == 9


def test_foreground_outside_main_thread():
    codes = []
    thread = threading.Thread(target=lambda: codes.append(run_foreground(python("raise SystemExit(5)"))))
    thread.start()
    thread.join(PATIENCE_S)
    assert codes == [5]


def test_foreground_restores_signal_handlers():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    run_foreground(python(""))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)] == before


@pytest.mark.parametrize("deaf", [False, True])
def test_orphaned_grandchild_killed_after_child_exit(tmp_path, deaf):
    """A grandchild in another process group does not survive the child."""
    argv = parent_of_grandchild(tmp_path, "sys.exit(3)", deaf)
    assert run_foreground(argv, grace_s=0.5) == 3
    grandchild = pid_in(tmp_path / "grandchild")
    # After SIGKILL the kernel takes its time on a busy machine.
    until(lambda: gone(grandchild), "the grandchild is gone")


def test_orphaned_grandchild_killed_after_child_sigkill(tmp_path):
    """A grandchild in another process group does not survive a killed child."""
    argv = parent_of_grandchild(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    assert run_foreground(argv, grace_s=5) == 137
    grandchild = pid_in(tmp_path / "grandchild")
    # After SIGKILL the kernel takes its time on a busy machine.
    until(lambda: gone(grandchild), "the grandchild is gone")


def test_unrelated_processes_not_killed(tmp_path):
    bystander = subprocess.Popen(python("import time; time.sleep(600)"))
    try:
        run_foreground(parent_of_grandchild(tmp_path, "sys.exit(0)"), grace_s=1)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stop_signal_ends_process_tree(tmp_path, signum):
    process = launcher(parent_of_grandchild(tmp_path, "time.sleep(600)"))
    grandchild = pid_in(tmp_path / "grandchild")
    process.send_signal(signum)
    assert process.wait(PATIENCE_S) == 130
    until(lambda: gone(grandchild), "the grandchild is gone")


def test_child_finishes_work_after_stop_signal(tmp_path):
    tail = f"""
def save(*_):
    pathlib.Path({str(tmp_path / "saved")!r}).write_text("yes")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
pathlib.Path({str(tmp_path / "ready")!r}).touch()
time.sleep(600)
"""
    process = launcher(parent_of_grandchild(tmp_path, tail))
    until((tmp_path / "ready").exists, "the child is ready")
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 130
    assert (tmp_path / "saved").read_text() == "yes"


@pytest.mark.parametrize(("grace_s", "signals"), [(0.2, 1), (600, 3)])
def test_child_ignoring_sigterm_is_killed(tmp_path, grace_s, signals):
    """A child that ignores SIGTERM is killed when its time is over, or at the third signal."""
    tail = f"""
log = open({str(tmp_path / "heard")!r}, "ab", buffering=0)
signal.signal(signal.SIGTERM, lambda *_: log.write(b"x"))
pathlib.Path({str(tmp_path / "ready")!r}).touch()
while True:
    time.sleep(1)
"""
    process = launcher(parent_of_grandchild(tmp_path, tail, deaf=True), grace_s=grace_s)
    until((tmp_path / "ready").exists, "the child is ready")
    for count in range(1, signals + 1):
        process.send_signal(signal.SIGTERM)
        if count < signals:
            until_size(tmp_path / "heard", count)
    assert process.wait(PATIENCE_S) == 130
    grandchild = pid_in(tmp_path / "grandchild")
    # After SIGKILL the kernel takes its time on a busy machine.
    until(lambda: gone(grandchild), "the grandchild is gone")


def test_ignored_signal_stays_ignored(tmp_path):
    code = """
    import os, signal, time
    os.kill(os.getppid(), signal.SIGHUP)
    print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)
    """
    process = subprocess.run(
        ["nohup", *launcher_argv(python(code))],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    assert (process.returncode, process.stdout) == (0, b"True\n")


def test_child_dies_with_killed_launcher(tmp_path):
    code = """
    import os, pathlib, sys, time
    path = pathlib.Path(sys.argv[1])
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)
    time.sleep(600)
    """
    process = launcher(python(code, tmp_path / "child"))
    child = pid_in(tmp_path / "child")
    assert os.getsid(child) == child  # Ctrl-C of the terminal reaches the launcher only
    process.kill()
    process.wait(PATIENCE_S)
    until(lambda: gone(child), "the child is gone")


def test_process_start_time():
    assert start_time(os.getpid()) == pytest.approx(psutil.Process().create_time())
    child = subprocess.Popen(python(""))
    until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE, "the child ended")
    assert start_time(child.pid) is None
    child.wait()
    assert start_time(child.pid) is None
