"""/dev/shm, locked memory, open files, processes and threads."""

from types import SimpleNamespace

import pytest

from dsrun.doctor.gpu.nvml import GpuState
from dsrun.doctor.machine_facts import DoctorTarget
from dsrun.recipe.recipe import Recipe
from tests.unit.doctor.recorded import found_by, levels_by_code, recorded

GIB = 2**30
PORT = {
    "/sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    "/sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
}


def limits(name: str, soft: str, hard: str = "unlimited") -> dict[str, str]:
    rows = [("Limit", "Soft Limit", "Hard Limit", "Units"), ("Max cpu time", "unlimited", "unlimited", "seconds")]
    rows.append((name, soft, hard, "bytes"))
    return {"/proc/self/limits": "".join(f"{a:<26}{b:<21}{c:<21}{d}\n" for a, b, c, d in rows)}


def shm(root, *, free: int, total: int = 64 * GIB, gpus: int = 2):
    state = SimpleNamespace(f_frsize=4096, f_blocks=total // 4096, f_bavail=free // 4096)
    (root / "dev/shm").mkdir(parents=True)
    return recorded(root, gpus=[GpuState(index=index) for index in range(gpus)], statvfs=lambda path: state)


@pytest.mark.parametrize(
    ("free", "gpus", "expected"),
    [
        (16 * GIB, 2, {"shm": "info"}),
        (64 * 2**20, 2, {"shm_small": "error"}),
        (64 * 2**20, 1, {"shm_small": "warning"}),
        (GIB, 2, {"shm_small": "warning"}),
    ],
)
def test_shared_memory(tmp_path, free, gpus, expected):
    assert levels_by_code("shm", shm(tmp_path, free=free, gpus=gpus, total=free)) == expected


def test_full_shared_memory_is_to_be_emptied(tmp_path):
    assert "ls -lS /dev/shm" in found_by("shm", shm(tmp_path, free=64 * 2**20))[0].fix


def test_no_shared_memory(tmp_path):
    assert levels_by_code("shm", recorded(tmp_path)) == {"shm_missing": "error"}


@pytest.mark.parametrize(
    ("soft", "expected"),
    [
        ("unlimited", {"memlock": "info"}),
        ("65536", {"memlock_limited": "error"}),
        (str(8 * GIB), {"memlock_limited": "warning"}),
    ],
)
def test_locked_memory(tmp_path, soft, expected):
    assert levels_by_code("memlock", recorded(tmp_path, PORT | limits("Max locked memory", soft))) == expected


def test_locked_memory_does_not_matter_without_infiniband(tmp_path):
    machine = recorded(tmp_path, limits("Max locked memory", "65536"))
    assert levels_by_code("memlock", machine) == {}
    nvme = DoctorTarget(recipe=Recipe.of({"offload": "nvme"}, {}))
    assert levels_by_code("memlock", machine, nvme) == {"memlock_limited": "error"}


def test_open_files(tmp_path):
    assert levels_by_code("nofile", recorded(tmp_path, limits("Max open files", "65536"))) == {"nofile": "info"}
    few = recorded(tmp_path, limits("Max open files", "1024", "1048576"))
    assert levels_by_code("nofile", few) == {"nofile_small": "warning"}
    assert found_by("nofile", few)[0].fix == "ulimit -n 65536"
    hard = recorded(tmp_path, limits("Max open files", "1024", "1024"))
    assert "limits.conf" in found_by("nofile", hard)[0].fix


def test_processes_of_the_user(tmp_path):
    assert levels_by_code("nproc", recorded(tmp_path, limits("Max processes", "unlimited"))) == {"nproc": "info"}
    assert levels_by_code("nproc", recorded(tmp_path, limits("Max processes", "300"))) == {"nproc_small": "warning"}


def test_processes_of_the_cgroup(tmp_path):
    """The folders above count too; a container's limit is at its root."""
    files = limits("Max processes", "unlimited") | {
        "/proc/self/cgroup": "0::/docker/job\n",
        "/sys/fs/cgroup/docker/job/pids.max": "max\n",
        "/sys/fs/cgroup/docker/pids.max": "1000\n",
        "/sys/fs/cgroup/docker/pids.current": "100\n",
    }
    assert levels_by_code("nproc", recorded(tmp_path, files), DoctorTarget(nproc=1)) == {"nproc": "info"}
    finding = found_by("nproc", recorded(tmp_path, files), DoctorTarget(nproc=2))[0]
    assert (finding.code, finding.message) == (
        "nproc_small",
        "the cgroup docker may have 900 more processes and threads; 1024 would be safe",
    )
