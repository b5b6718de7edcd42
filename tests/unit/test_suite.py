"""The suite's own machinery: forks are what new processes would be, nothing outlives a session, costs count."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests import rotation
from tests.budget import FAIL_S, LIMIT_S, Ledger
from tests.forkserver.client import HEAVY, LIGHT, Process
from tests.integration.kept import COMPLETE, kept
from tests.processes import left_of

ROOT = Path(__file__).parents[2]
WHO = """
import json, os, sys
print(json.dumps([sys.argv, os.getcwd(), os.environ.get("WORD"), sys.path[0], sorted(set(sys.modules) & {"torch"})]))
sys.stderr.write("to stderr")
sys.exit(7)
"""
LEAVE = """
import subprocess, sys, time
from tests.reaper import Reaper
Reaper()
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("start", [LIGHT.run, subprocess.run], ids=["forked", "started"])
def test_forkserver_process_equals_started_one(start, tmp_path):
    """Arguments, folder, environment, streams and exit code are those of a new interpreter."""
    env = {**os.environ, "WORD": "a b"}
    argv = [sys.executable, "-c", WHO, "one", "two words"]
    done = start(argv, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (7, "to stderr")
    assert json.loads(done.stdout) == [["-c", "one", "two words"], str(tmp_path), "a b", "", []]


def test_forkserver_process_shown_by_proc():
    """/proc shows the command line and the environment that were asked for; the reaper of a run looks there."""
    argv = [sys.executable, "-c", "input()", "DSRUN"]
    env = {**os.environ, "DSRUN_RUN_ID": "outer/inner"}
    with LIGHT.popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert isinstance(process, Process)
        shown = psutil.Process(process.pid)
        while "DSRUN" not in shown.cmdline():
            assert process.poll() is None
        assert shown.environ()["DSRUN_RUN_ID"] == "outer/inner"
        process.send_signal(signal.SIGTERM)
    assert process.returncode == -signal.SIGTERM


def test_forkserver_starts_new_process_for_import_time_settings():
    """What is read when Python or torch are imported cannot be changed in a fork."""
    argv = [sys.executable, "-c", "import os; print(os.environ['PYTHONHASHSEED'])"]
    process = LIGHT.popen(argv, env={**os.environ, "PYTHONHASHSEED": "5"}, stdout=subprocess.PIPE, text=True)
    assert process.communicate()[0] == "5\n"
    assert not isinstance(process, Process)


def test_forkserver_heavy_has_torch_imported():
    code = "import sys; before = set(sys.modules); import torch, deepspeed; print(before >= {'torch', 'deepspeed'})"
    assert HEAVY.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "True\n"


@pytest.mark.parametrize("env", [{}, {"PYTHONHASHSEED": "5"}], ids=["forked", "started"])
def test_test_that_ends_early_does_not_wait_for_its_process(env):
    """As one does that has taken too long."""
    argv = [sys.executable, "-c", "import time; time.sleep(1000)"]
    with pytest.raises(TimeoutError), LIGHT.popen(argv, env=os.environ | env) as process:
        raise TimeoutError
    assert isinstance(process, Process) is not bool(env)
    assert process.returncode == -signal.SIGKILL


def test_reaper_kills_what_a_killed_session_leaves():
    """A process in a session of its own goes with the killed test session."""
    with subprocess.Popen([sys.executable, "-c", LEAVE], cwd=ROOT, stdout=subprocess.PIPE, text=True) as session:
        sleeper = psutil.Process(int(session.stdout.readline()))
        session.kill()
    assert not left_of([sleeper])


def report(test: str, own: float, *, free: bool = False) -> SimpleNamespace:
    return SimpleNamespace(nodeid=test, duration=1.0, user_properties=[("cpu_s", [own, own + 9.0, free])])


def session_of(*reports: SimpleNamespace) -> tuple[int, list[str]]:
    """The exit status of a session with these reports under --budget, and the lines on tests over the limit."""
    ledger = Ledger(limited=True)
    for each in reports:
        ledger.pytest_runtest_logreport(each)
    session = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    ledger.pytest_sessionfinish(session)
    lines: list[str] = []
    ledger.pytest_terminal_summary(
        SimpleNamespace(section=lambda title: None, line=lambda text, **colours: lines.append(text))
    )
    return session.exitstatus, [line for line in lines if "over the" in line]


def test_budget_names_expensive_tests_only():
    """Phases of a test add up; engines and exhaustive tests are free; what was left behind is no test's own."""
    status, lines = session_of(
        report("dear", FAIL_S / 2),
        report("dear", FAIL_S / 2 + 0.1),
        report("cheap", LIMIT_S / 2),
        report("engine", FAIL_S * 2, free=True),
    )
    assert status == pytest.ExitCode.TESTS_FAILED
    assert [line.split(":")[0] for line in lines] == ["FAILED dear"]


def test_budget_lists_what_a_slow_machine_may_have_made():
    """A test just over the limit is named, and the session passes: the same work does not always take the same time."""
    status, lines = session_of(report("near", LIMIT_S * 1.25))
    assert status == pytest.ExitCode.OK
    assert [line.split(":")[0] for line in lines] == ["OVER near"]


def test_kept_folder_is_made_again_when_its_sources_change(tmp_path):
    """Also when it was left half made; what nobody has used for a week is removed."""
    source = tmp_path / "sources/code.py"
    source.parent.mkdir()
    source.write_text("1")
    made = []

    def found(*facts, fails=False):
        def fill(folder):
            made.append(folder)
            assert not list(folder.iterdir())
            (folder / "wheel").touch()
            assert not fails

        return kept(tmp_path / "kept", facts, [source.parent], fill)

    with pytest.raises(AssertionError):
        found("gcc 12", fails=True)
    first = found("gcc 12")
    assert found("gcc 12") == first
    assert len(made) == 2
    second = found("gcc 13")
    source.write_text("2")
    third = found("gcc 12")
    assert len({first, second, third}) == 3 == len(made) - 1
    os.utime(first / COMPLETE, (0, 0))
    assert found("gcc 12") == third
    assert not first.exists()
    assert (second / "wheel").exists()


def test_kept_folder_refuses_sources_that_have_moved(tmp_path):
    with pytest.raises(FileNotFoundError):
        kept(tmp_path / "kept", [], [tmp_path / "moved"], lambda _folder: None)


def test_sources_of_the_kept_wheel_exist():
    """What it follows from is said by paths: one that has moved is found here, not after an hour of `make test-all`."""
    from tests.integration.test_wheel_build import SOURCES

    assert [each for each in SOURCES if not each.exists()] == []


def test_five_days_have_all_exhaustive_tests():
    """Each a part of them, and all the others."""

    def of_day(day):
        items = [SimpleNamespace(nodeid=f"x[{n}]", get_closest_marker={"exhaustive": True}.get) for n in range(30)]
        items.append(SimpleNamespace(nodeid="often", get_closest_marker={}.get))
        left_out = []
        hook = SimpleNamespace(pytest_deselected=lambda **given: left_out.extend(given["items"]))
        rotation.pytest_collection_modifyitems(SimpleNamespace(getoption={"day": day}.get, hook=hook), items)
        assert len(items) + len(left_out) == 31
        return {each.nodeid for each in items}

    days = [of_day(day) for day in range(20001, 20001 + rotation.PARTS)]
    assert all("often" in day and len(day) < 31 for day in days)
    assert len(set.union(*days)) == 31
    assert sum(map(len, days)) == 30 + rotation.PARTS
    assert len(of_day(None)) == 31
