"""bench/processes.py: whatever a benchmark starts is ended after its limit, with a line; and all of bench/ uses it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from bench.processes import LimitedProcess, first_text, forked, run
from tests.processes import left_of, wait_for
from tests.waits import waits

ROOT = Path(__file__).parents[3]
FILES = sorted([*(ROOT / "bench").rglob("*.py"), *(ROOT / "tools").rglob("*.py")])
PROCESSES = "bench/processes.py"
STARTS = re.compile(
    r"(subprocess|psutil)\.(Popen|run|call|check_call|check_output)\(|os\.(fork|system|popen|spawn\w*|posix_spawn\w*)\("
    r"|get_context\(|\bProcess\(target|venv\.create\(|ProcessPoolExecutor\("
)
CLOCK = re.compile(r"monotonic\(\)|time\.time\(\)|\.check\(\)")
# Starts a process of its own session, writes its number into the first argument, and waits for ever.
CODE = """if True:
    import subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(999)"], start_new_session=True)
    open(sys.argv[1] + ".part", "w").write(str(child.pid))
    import os; os.rename(sys.argv[1] + ".part", sys.argv[1])
    time.sleep(999)
"""


@pytest.fixture
def lock(tmp_path, monkeypatch):
    """One that nobody holds, where torch compiles."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "ops"))
    lock = tmp_path / "ops" / "deepspeed_shm_comm" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    return lock


def name(file):
    return str(file.relative_to(ROOT))


def test_bench_and_tools_wait_with_limits():
    found = {f"{name(file)}:{f} {call}" for file in FILES for f, call in waits(ast.parse(file.read_text("utf-8")))}
    assert found == set()


def sleeping_loops(tree):
    """Each loop that sleeps, as source."""
    for node in ast.walk(tree):
        if isinstance(node, ast.While) and "sleep(" in (source := ast.unparse(node)):
            yield source


def test_loops_of_benchmarks_look_at_a_clock():
    loops = [(name(file), loop) for file in FILES for loop in sleeping_loops(ast.parse(file.read_text("utf-8")))]
    assert len(loops) > 5
    assert [(file, loop) for file, loop in loops if not CLOCK.search(loop)] == []


def test_benchmarks_start_processes_in_one_module():
    files = [file for file in FILES if name(file).startswith("bench/") and STARTS.search(file.read_text("utf-8"))]
    assert [name(file) for file in files] == [PROCESSES]


def test_limit_ends_the_family_and_names_the_lock(tmp_path, lock):
    """A process behind a lock is ended with what it started in another session; the benchmark ends with one line."""
    pid = tmp_path / "pid"
    with pytest.raises(SystemExit) as ended, (tmp_path / "bench.log").open("wb") as log:
        run([sys.executable, "-c", CODE, str(pid)], what="the peer", limit_s=3, stdout=log)
    line = str(ended.value)
    assert line.startswith("error: the peer ran for 3 s")
    assert f"see {tmp_path}/bench.log" in line
    assert str(lock) in line
    assert "\n" not in line
    with suppress(psutil.NoSuchProcess):
        assert not left_of([psutil.Process(int(pid.read_text()))], seconds=5)


def test_processes_of_a_nested_benchmark_are_of_the_family(tmp_path):
    """Also one that a benchmark within a benchmark has started, and that has lost its parent."""
    pid = tmp_path / "pid"
    code = f"import os, sys; from bench.processes import LimitedProcess; sys.argv[1:] = [{str(pid)!r}]\n"
    code += f"LimitedProcess([sys.executable, '-c', {CODE!r}, sys.argv[1]], what='inner', limit_s=99)\n"
    code += "import time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)\nos._exit(0)"
    with LimitedProcess([sys.executable, "-c", code], what="outer", limit_s=60, cwd=ROOT) as process:
        process.finish()
        inner = psutil.Process(int(pid.read_text()))
        assert inner.is_running()
    assert not left_of([inner], seconds=5)


def test_abandoned_lock_is_removed_before_a_peer_compiles(lock, capsys):
    run([sys.executable, "-c", ""], what="light", limit_s=60)
    assert lock.exists()
    run([sys.executable, "-c", ""], what="peer", limit_s=60, compiles=True)
    assert not lock.exists()
    assert str(lock) in capsys.readouterr().out


def test_run_returns_what_subprocess_returns():
    done = run([sys.executable, "-c", "print(1); exit(3)"], what="it", limit_s=60, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, "1\n", "")
    with pytest.raises(subprocess.CalledProcessError):
        run([sys.executable, "-c", "exit(3)"], what="it", limit_s=60, check=True)


def test_line_of_a_pipe_has_the_limit():
    code = "print('ready', flush=True); import time; time.sleep(999)"
    process = LimitedProcess([sys.executable, "-c", code], what="it", limit_s=3, stdout=subprocess.PIPE, text=True)
    assert process.line("stdout") == "ready\n"
    with pytest.raises(SystemExit):
        process.line("stdout")
    assert process.poll() is not None


def test_limit_counts_from_the_last_renewal():
    with LimitedProcess([sys.executable, "-c", "import time; time.sleep(999)"], what="it", limit_s=0.5) as process:
        wait_for(lambda: process.left_s < 0.2)
        process.renew()
        process.check()
        wait_for(lambda: process.left_s == 0)
        with pytest.raises(SystemExit):
            process.check()
    assert process.poll() is not None


def said(text):
    if text == "dies":
        os._exit(3)
    if text == "waits":
        time.sleep(999)
    return text


def test_first_text_of_forks_ends_the_others():
    assert first_text(said, [("",), ("",)], limit_s=60) == ""
    assert first_text(said, [("waits",), ("no",)], limit_s=60) == "no"
    assert first_text(said, [("",), ("dies",)], limit_s=60) == "died with exit code 3"
    assert first_text(said, [("",), ("waits",)], limit_s=1) == "did not end in 1 s"


def numbers(work):
    return forked(work, 2.0, what="it", limit_s=1, size=2)


def test_fork_has_the_limit_and_returns_numbers():
    def put(value, found):
        found[:] = value, 2 * value

    assert numbers(put) == [2.0, 4.0]
    with pytest.raises(SystemExit):
        numbers(lambda *_: time.sleep(999))
    with pytest.raises(SystemExit):
        numbers(lambda *_: os._exit(3))
