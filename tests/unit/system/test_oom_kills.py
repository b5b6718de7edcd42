"""The kernel's count of processes killed for memory, in made-up /proc and /sys."""

from __future__ import annotations

from dsrun.system.host import oom_kills


def put(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_a_machine_that_counts_nothing(tmp_path):
    assert oom_kills(tmp_path) == 0


def test_kills_of_the_cgroup_and_of_the_machine_both_count(tmp_path):
    put(tmp_path, "proc/vmstat", "pgfault 12\noom_kill 2\n")
    put(tmp_path, "proc/self/cgroup", "0::/job\n")
    put(tmp_path, "sys/fs/cgroup/job/memory.events", "low 0\noom 4\noom_kill 3\noom_group_kill 9\n")
    assert oom_kills(tmp_path) == 5


def test_the_older_cgroups(tmp_path):
    put(tmp_path, "proc/self/cgroup", "9:memory:/job\n")
    put(
        tmp_path,
        "sys/fs/cgroup/memory/job/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    )
    assert oom_kills(tmp_path) == 1
