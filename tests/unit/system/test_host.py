"""This machine, and machines made of files: containers and batch jobs with limits."""

import os
import subprocess
from pathlib import Path

import pytest

from dsrun.system import host
from dsrun.system.files import nearest_existing

GIB = 1 << 30


def machine(root: Path, files: dict[str, object]) -> Path:
    base: dict[str, object] = {"proc/meminfo": f"MemTotal: {64 << 20} kB\nMemAvailable: {32 << 20} kB\n"}
    for name, content in {**base, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def test_facts_of_this_host(tmp_path):
    assert 1 <= host.cores() <= len(os.sched_getaffinity(0))
    assert 0 < host.memory_available() <= host.memory_total()
    assert host.disk_free(tmp_path) > 0
    assert host.hostname()
    shm = host.shm_free()
    assert (shm is not None) == Path("/dev/shm").is_dir()


def test_cores_follow_the_affinity_mask():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert host.cores() == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    "line",
    [
        "flags\t\t: fpu avx512f avx512_bf16",
        "flags\t\t: fpu amx_bf16 amx_tile",
        "Features\t: fp asimd bf16 i8mm",
    ],
)
def test_cpu_with_bf16(tmp_path, line):
    assert host.cpu_bf16(machine(tmp_path, {"proc/cpuinfo": f"processor\t: 0\n{line}"}))


def test_cpu_without_bf16(tmp_path):
    root = machine(tmp_path, {"proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu avx2 avx512f"})
    assert not host.cpu_bf16(root)
    assert host.cpu_flags(root) == {"fpu", "avx2", "avx512f"}
    assert host.cpu_flags(tmp_path / "nothing") == frozenset()


def test_host_memory_without_cgroup(tmp_path):
    root = machine(tmp_path, {})
    assert host.memory_available(root) == 32 * GIB
    assert host.memory_total(root) == 64 * GIB
    assert host.shm_free(root) is None


def test_cgroup_v2_limits_of_outer_groups_count(tmp_path):
    inner = "sys/fs/cgroup/slurm/job_1/step_0"
    root = machine(
        tmp_path,
        {
            "proc/self/cgroup": "0::/slurm/job_1/step_0",
            f"{inner}/memory.max": "max",
            f"{inner}/memory.current": 5 * GIB,
            f"{inner}/cpu.max": "max 100000",
            "sys/fs/cgroup/slurm/job_1/memory.max": 10 * GIB,
            "sys/fs/cgroup/slurm/job_1/memory.current": 8 * GIB,
            "sys/fs/cgroup/slurm/job_1/memory.stat": f"anon {5 * GIB}\ninactive_file {3 * GIB}",
            "sys/fs/cgroup/slurm/job_1/cpu.max": "150000 100000",
        },
    )
    assert host.memory_available(root) == 5 * GIB  # the page cache can be dropped
    assert host.memory_total(root) == 10 * GIB
    assert host.cores(root) == 1


def test_cgroup_v1_limits_in_container(tmp_path):
    """A container whose cgroup path is that of the host."""
    root = machine(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n1:name=systemd:/docker/abc",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 4 * GIB,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": GIB,
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
        },
    )
    assert host.memory_available(root) == 3 * GIB
    assert host.memory_total(root) == 4 * GIB
    assert host.cores(root) == 1  # half a core is still one process


def test_cgroup_v1_without_limits(tmp_path):
    root = machine(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/\n1:cpu:/",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 9223372036854771712,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": GIB,
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
    )
    assert host.memory_available(root) == 32 * GIB
    assert host.cores(root) == host.cores(tmp_path / "nothing")


def test_memory_available_never_negative(tmp_path):
    root = machine(
        tmp_path,
        {
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/memory.max": GIB,
            "sys/fs/cgroup/memory.current": 2 * GIB,
        },
    )
    assert host.memory_available(root) == 0


def test_disk_free_of_missing_path(tmp_path):
    missing = tmp_path / "a" / "b"
    assert nearest_existing(missing) == tmp_path
    assert host.disk_free(missing) > 0


def test_git_commit(tmp_path, monkeypatch):
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.setattr(host, "_GIT_TIMEOUT_S", 600)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert host.git_commit(tmp_path) is None
    git("init")
    assert host.git_commit(tmp_path) is None
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-m", "first")
    git("tag", "v1")
    head = git("rev-parse", "HEAD")
    assert host.git_commit(tmp_path) == head
    (tmp_path / "file").write_text("two")
    assert host.git_commit(tmp_path) == f"{head}-dirty"
    assert host.git_commit(tmp_path / "missing") is None


def test_git_commit_without_git(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert host.git_commit(tmp_path) is None


def test_package_versions():
    found = host.versions(["psutil", "no-such-package"])
    assert set(found) == {"python", "psutil"}
    assert found["psutil"][0].isdigit()
