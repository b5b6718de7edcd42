"""Host memory against the offload plan of a job."""

import json
from types import SimpleNamespace

import pytest

from dsrun.doctor.gpu.nvml import GpuState
from dsrun.doctor.machine_facts import DoctorTarget
from dsrun.recipe.recipe import Recipe
from tests.unit.doctor.recorded import found_by, levels_by_code, recorded

GIB = 2**30
CONFIG = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096,
}  # fmt: skip
GPUS = [GpuState(index=index, name="NVIDIA H100 80GB HBM3") for index in range(4)]


def memory(total: int, free: int | None = None) -> dict[str, str]:
    """In GiB."""
    return {
        "/proc/meminfo": f"MemTotal: {total * 2**20} kB\nMemAvailable: {(total if free is None else free) * 2**20} kB\n"
    }


def target(root, **settings) -> DoctorTarget:
    """Llama 2 7B."""
    (root / "config.json").write_text(json.dumps(CONFIG))
    return DoctorTarget(recipe=Recipe.of({"model": str(root), **settings}, {}), cwd=root)


@pytest.mark.parametrize(
    ("gib", "free", "settings", "expected"),
    [
        (1024, None, {"zero": "2", "offload": "cpu"}, {"host_memory": "info"}),
        (120, None, {"zero": "2", "offload": "cpu"}, {"host_memory_small": "error"}),  # 6.7 billion × 18 bytes
        (1024, 100, {"zero": "2", "offload": "cpu"}, {"host_memory_used": "warning"}),
        (120, None, {"zero": "2"}, {"host_memory": "info"}),
        (60, None, {"zero": "2"}, {"host_memory_small": "error"}),  # four processes load 27 GB each
        (60, None, {"zero": "3"}, {"host_memory": "info"}),
    ],
)
def test_host_memory(tmp_path, gib, free, settings, expected):
    machine = recorded(tmp_path, memory(gib, free), gpus=GPUS)
    assert levels_by_code("host_memory", machine, target(tmp_path, **settings)) == expected


def test_host_memory_of_a_container(tmp_path):
    """The cgroup's limit counts, and is named."""
    files = memory(1024) | {
        "/proc/self/cgroup": "0::/job\n",
        "/sys/fs/cgroup/job/memory.max": f"{64 * GIB}\n",
        "/sys/fs/cgroup/job/memory.current": "0\n",
    }
    finding = found_by("host_memory", recorded(tmp_path, files, gpus=GPUS), target(tmp_path, zero="2", offload="cpu"))[
        0
    ]
    assert finding.code == "host_memory_small"
    assert "64 GiB is all there is: the limit of the container or job, the machine has 1024 GiB" in finding.message
    assert "--offload none" in finding.fix


def test_offload_to_a_small_drive(tmp_path):
    state = SimpleNamespace(f_frsize=4096, f_bavail=10 * GIB // 4096)
    machine = recorded(tmp_path, memory(1024), gpus=GPUS, statvfs=lambda path: state)
    job = target(tmp_path, zero="3", offload="nvme", nvme_path=str(tmp_path / "nvme"))
    assert levels_by_code("host_memory", machine, job)["host_memory_nvme"] == "error"
    large = recorded(
        tmp_path, memory(1024), gpus=GPUS, statvfs=lambda path: SimpleNamespace(f_frsize=4096, f_bavail=10**9)
    )
    assert levels_by_code("host_memory", large, job) == {"host_memory": "info"}


def test_login_node_is_not_asked_for_memory(tmp_path):
    assert levels_by_code("host_memory", recorded(tmp_path, memory(4)), target(tmp_path, offload="cpu")) == {}
    assert levels_by_code("host_memory", recorded(tmp_path, memory(4), gpus=GPUS)) == {}
