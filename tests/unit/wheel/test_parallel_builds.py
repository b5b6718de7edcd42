"""Builds side by side, as real processes."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from dsrun.wheel.compile.compile_wheel import parallel
from tests.processes import left_of

PYTHON = sys.executable


def plan(tmp_path, width, *codes):
    """Builds a, b, c … that run Python code."""
    builds = [
        {"label": label, "argv": [PYTHON, "-c", code], "cwd": str(tmp_path), "env": {"X": label}}
        for label, code in zip("abcdef", codes, strict=False)
    ]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"width": width, "builds": builds}))
    return [PYTHON, "-I", parallel.__file__, str(path)]


def run(argv):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, start_new_session=True)
    return done.returncode, done.stdout.splitlines()


def test_parallel_build_lines_are_labelled(tmp_path):
    code, lines = run(
        plan(
            tmp_path,
            2,
            "import os, sys; print(os.environ['X'], flush=True); print('e\\tf', file=sys.stderr)",
            "import os; print(os.getcwd())",
        )
    )
    assert code == 0
    assert [line for line in lines if line.startswith("a")] == ["a\t!begin", "a\ta", "a\te\tf", "a\t!end 0"]
    assert [line for line in lines if line.startswith("b")] == ["b\t!begin", f"b\t{tmp_path}", "b\t!end 0"]


def test_parallel_build_width_limits_concurrency(tmp_path):
    """Two builds that wait for one another end only side by side, and the third needs a free place."""
    meet = """
import pathlib, time
pathlib.Path("{mine}").touch()
while not pathlib.Path("{other}").exists():
    time.sleep(0.02)
"""
    code, lines = run(
        plan(tmp_path, 2, meet.format(mine="1", other="2"), meet.format(mine="2", other="1"), "print('last')")
    )
    assert code == 0
    begun = [line for line in lines if line.endswith("!begin")]
    assert len(begun) == 3
    first_end = min(lines.index("a\t!end 0"), lines.index("b\t!end 0"))
    assert lines.index("c\t!begin") > first_end


def test_parallel_build_width_of_one_is_sequential(tmp_path):
    _, lines = run(plan(tmp_path, 1, "print(1)", "print(2)"))
    assert lines == ["a\t!begin", "a\t1", "a\t!end 0", "b\t!begin", "b\t2", "b\t!end 0"]


def test_first_failed_build_ends_the_others(tmp_path):
    """The first failure ends the builds that run and starts no more."""
    wait = "import pathlib, time; pathlib.Path('there').touch(); time.sleep(600)"
    fail = """
import pathlib, time
while not pathlib.Path("there").exists():
    time.sleep(0.02)
raise SystemExit(3)
"""
    code, lines = run(plan(tmp_path, 2, wait, fail, "print('never')"))
    assert code == 1
    assert "b\t!end 3" in lines
    assert not [line for line in lines if line.startswith(("a\t!end", "c"))]


def test_first_failed_build_ends_compilers_of_others(tmp_path):
    """setup.py's own end is not that of the ninja and the compilers it waits for, and these hold its output open."""
    wait = """
import pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path("new").write_text(str(child.pid))
pathlib.Path("new").rename("pid")
child.wait()
"""
    fail = """
import pathlib, time
while not pathlib.Path("pid").exists():
    time.sleep(0.02)
raise SystemExit(3)
"""
    code, lines = run(plan(tmp_path, 2, wait, fail))
    assert code == 1
    assert "b\t!end 3" in lines
    with suppress(psutil.NoSuchProcess):
        # Its output is closed; the kernel may still have something to do until it has ended.
        assert not left_of([psutil.Process(int((tmp_path / "pid").read_text()))])


def test_parallel_build_output_of_invalid_utf8(tmp_path):
    _, lines = run(plan(tmp_path, 1, "import sys; sys.stdout.buffer.write(b'a\\xffb\\n')"))
    assert lines[1] == "a\ta\ufffdb"


def to_process(pid):
    os.kill(pid, signal.SIGTERM)


def to_other_thread(pid):
    """As the kernel may choose for a process that was stopped when the signal came."""
    thread = next(each.id for each in psutil.Process(pid).threads() if each.id != pid)
    assert ctypes.CDLL(None).tgkill(pid, thread, signal.SIGTERM) == 0


@pytest.mark.parametrize("send", [to_process, to_other_thread])
def test_sigterm_ends_builds_and_their_children(tmp_path, send):
    """As the kernel sends it when dsrun is killed outright."""
    code = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path("new").write_text(str(child.pid))
pathlib.Path("new").rename("pid")
time.sleep(600)
"""
    process = subprocess.Popen(plan(tmp_path, 1, code), start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        grandchild = psutil.Process(int((tmp_path / "pid").read_text()))
        send(process.pid)
        assert process.wait(60) == -signal.SIGTERM
        assert not left_of([grandchild])
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
