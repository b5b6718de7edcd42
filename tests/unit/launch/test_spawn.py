"""A forked rank equals one that was started: environment, arguments, streams, signals, randomness."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from dsrun.launch.supervisor.reaper import state_and_parent
from dsrun.launch.workers.spawn import FailureRecorder, RankStatus, read_rank_statuses

# What a rank sees of itself; the module stands for dsrun.train.
RANK = """
import json, os, random, signal, sys
facts = {
    "environ": dict(os.environ), "argv": sys.argv, "name": __name__, "cwd": os.getcwd(), "umask": os.umask(0),
    "signals": {each.name: str(signal.getsignal(each)) for each in sorted(signal.valid_signals() - {9, 19})
                if isinstance(each, signal.Signals)},
    "leads": (os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()), "path": sys.path[:1],
    "random": random.random(), "c": os.popen("echo $WHO").read(), "main": sys.modules["__main__"].__name__,
    "fds": sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in (1, 2)),
}
with open(os.environ["OUT"], "w") as out:
    json.dump(facts, out)
sys.exit(int(os.environ["CODE"]))
"""
# A warm process in little: it has handlers, an environment and streams that no rank must inherit.
WARM = """
import json, os, signal, subprocess, sys, time
from dsrun.launch.workers.zygote import install_stop_handlers
from dsrun.launch.workers.spawn import prefork
os.environ["LEFT_OVER"] = "1"
os.environ["DSRUN_STOP_FILE"] = "/nowhere"
install_stop_handlers()
env, files = json.loads(sys.argv[1])
base = {**os.environ}
del base["LEFT_OVER"], base["DSRUN_STOP_FILE"]
forks = prefork("a_rank", 2)
ranks = [seed.exec_rank(["--x", "a b"], {**base, **each}, [None, file]) for seed, each, file in zip(forks, env, files)]
print(json.dumps([rank.wait(60) for rank in ranks]))
"""


@pytest.fixture(autouse=True)
def heeded():
    """Also where the tests run in the background, which ignores SIGINT: the launcher gives it back to ranks."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def forked(tmp_path, *, codes=(0, 0)):
    (tmp_path / "a_rank.py").write_text(RANK)
    (tmp_path / "a_warm.py").write_text(WARM)
    env = [
        {"RANK": str(rank), "WHO": f"me{rank}", "OUT": str(tmp_path / f"{rank}.json"), "CODE": str(code)}
        for rank, code in enumerate(codes)
    ]
    files = [None, str(tmp_path / "stderr.log")]
    (tmp_path / "stderr.log").touch()
    argv = [sys.executable, "-u", "-m", "a_warm", json.dumps([env, files])]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        argv,
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(len(codes))]
    return json.loads(done.stdout), found


def started(tmp_path):
    """The same module as torchrun starts it."""
    env = {
        **os.environ,
        **{"RANK": "0", "WHO": "me0", "OUT": str(tmp_path / "cold.json"), "CODE": "0"},
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
    }
    argv = [sys.executable, "-u", "-m", "a_rank", "--x", "a b"]
    subprocess.run(
        argv, env=env, cwd=tmp_path, stdin=subprocess.DEVNULL, check=True, start_new_session=True, timeout=60
    )
    return json.loads((tmp_path / "cold.json").read_text())


def test_preforked_rank_is_like_spawned_rank(tmp_path):
    """A forked rank is like one that was started."""
    codes, (first, second) = forked(tmp_path)
    assert codes == [0, 0]
    cold = started(tmp_path)
    for each in (first, second, cold):
        each["environ"].pop("OUT")
    for key in ("argv", "name", "cwd", "umask", "signals", "leads", "path", "main", "environ", "c"):
        assert first[key] == cold[key], key
    assert second["c"] == "me1\n"
    assert first["random"] != second["random"]
    assert str(tmp_path / "stderr.log") in second["fds"]
    assert str(tmp_path / "stderr.log") not in first["fds"]


def test_preforked_rank_returns_program_exit_code(tmp_path):
    """A forked rank's exit code is the program's."""
    assert forked(tmp_path, codes=(3, 0))[0] == [3, 0]


def test_rank_status_read_line_by_line(tmp_path):
    """The rank status is read line by line."""
    file = tmp_path / "ranks"
    assert read_rank_statuses(file) == []
    recorder = FailureRecorder(file)
    recorder.write(1, 77)
    recorder.write(1, 77, -9)
    with file.open("a") as half:
        half.write('{"rank": 0, "pi')
    assert read_rank_statuses(file) == [RankStatus(1, 77), RankStatus(1, 77, -9)]


SOWER = """
import json, os, psutil
from dsrun.launch.workers.spawn import prefork
prefork("a_rank", 2)
print(json.dumps([child.pid for child in psutil.Process().children()]), flush=True)
os.kill(os.getpid(), 9)
"""


def test_unused_preforked_workers_exit_with_agent():
    """Pre-forked workers that nobody needs end with the agent."""
    with subprocess.Popen([sys.executable, "-c", SOWER], stdout=subprocess.PIPE) as sower:
        assert sower.stdout is not None
        pids = json.loads(sower.stdout.readline())
    assert len(pids) == 2
    deadline = time.monotonic() + 60
    while any(state_and_parent(pid)[0] not in ("", "Z") for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)
