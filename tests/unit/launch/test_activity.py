"""Which ranks compute, by the kernel's count of their CPU time."""

from __future__ import annotations

import os
import subprocess
import sys

from dsrun.launch.supervisor import watchdog
from dsrun.launch.supervisor.watchdog import Activity, bytes_moved, cpu_seconds


def test_rank_that_computes_and_one_that_sleeps(monkeypatch):
    used = {1: 0.0, 2: 0.0}
    monkeypatch.setattr(watchdog, "cpu_seconds", used.__getitem__)
    monkeypatch.setattr(watchdog, "bytes_moved", lambda pid: 0)
    watch = Activity()
    for now in range(100):
        used[1] += 0.5
        used[2] += 0.002  # a thread that looks at something now and then
        seen = watch.update({0: 1, 1: 2}, float(now))
    assert seen == {0: 99.0, 1: 0.0}


def test_rank_that_reads_from_a_slow_file_server(monkeypatch):
    """Much of the time asleep: 2 MiB/s take next to no CPU time. Some log lines are no work."""
    moved = {1: 0, 2: 0}
    monkeypatch.setattr(watchdog, "cpu_seconds", lambda pid: 0.0)
    monkeypatch.setattr(watchdog, "bytes_moved", moved.__getitem__)
    watch = Activity()
    for now in range(100):
        moved[1] += 2 << 20
        moved[2] += 1 << 10
        seen = watch.update({0: 1, 1: 2}, float(now))
    assert (seen[0] > 95, seen[1]) == (True, 0.0)


def test_bytes_moved_by_a_process(tmp_path):
    before = bytes_moved(os.getpid())
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    assert bytes_moved(os.getpid()) - before >= 1 << 20
    assert bytes_moved(2**22 - 1) == 0


def test_another_process_of_the_same_rank_starts_anew(monkeypatch):
    monkeypatch.setattr(watchdog, "cpu_seconds", lambda pid: 0.0)
    monkeypatch.setattr(watchdog, "bytes_moved", lambda pid: 0)
    watch = Activity()
    watch.update({0: 1}, 0.0)
    assert watch.update({0: 2}, 50.0) == {0: 50.0}
    assert watch.update({}, 60.0) == {}


def test_cpu_seconds_of_processes():
    busy = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert 0.2 < cpu_seconds(process.pid) < 5
        process.kill()
    assert cpu_seconds(os.getpid()) > 0
    assert cpu_seconds(2**22 - 1) == 0
