"""The kernel's count of processes killed for memory, in made-up /proc and /sys."""

from __future__ import annotations

from dsrun.system.host import oom_kills


def put(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_oom_kills_without_counters(tmp_path):
    assert oom_kills(tmp_path) == 0


def test_oom_kills_of_cgroup_and_host_add_up(tmp_path):
    put(tmp_path, "proc/vmstat", "pgfault 12\noom_kill 2\n")
    put(tmp_path, "proc/self/cgroup", "0::/job\n")
    put(tmp_path, "sys/fs/cgroup/job/memory.events", "low 0\noom 4\noom_kill 3\noom_group_kill 9\n")
    assert oom_kills(tmp_path) == 5


def test_oom_kills_cgroup_v1(tmp_path):
    put(tmp_path, "proc/self/cgroup", "9:memory:/job\n")
    put(
        tmp_path,
        "sys/fs/cgroup/memory/job/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    )
    assert oom_kills(tmp_path) == 1
