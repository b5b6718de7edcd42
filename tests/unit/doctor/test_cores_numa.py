"""Cores and threads of each rank, NUMA nodes."""

import pytest

from dsrun.doctor.gpu.nvml import GpuState
from dsrun.doctor.host.limits import cpu_list
from dsrun.doctor.machine_facts import DoctorTarget
from dsrun.recipe.recipe import Recipe
from tests.unit.doctor.recorded import found_by, levels_by_code, recorded

GPUS = [GpuState(index=0, bus="0000:3b:00.0"), GpuState(index=1, bus="0000:86:00.0")]


def cpus(text: str) -> dict[str, str]:
    return {"/proc/self/status": f"Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t{text}\n"}


def sockets(*, homes: tuple[str, str] = ("0", "1")) -> dict[str, str]:
    files = {"/sys/devices/system/node/node0/cpulist": "0-15\n", "/sys/devices/system/node/node1/cpulist": "16-31\n"}
    for gpu, home in zip(GPUS, homes, strict=True):
        files[f"/sys/bus/pci/devices/{gpu.bus}/numa_node"] = f"{home}\n"
    return files


def test_cpu_list():
    assert cpu_list(" 0-2,8,10-11\n") == {0, 1, 2, 8, 10, 11}
    assert cpu_list("") == frozenset()


@pytest.mark.parametrize(
    ("allowed", "environ", "expected"),
    [
        ("0-15", {}, {"cores": "info"}),
        ("0-15", {"OMP_NUM_THREADS": "8"}, {"cores": "info"}),
        ("0-15", {"OMP_NUM_THREADS": "16"}, {"cores_threads": "warning"}),
        ("0-15", {"OMP_NUM_THREADS": "all"}, {"cores_threads": "warning"}),
        ("0-2", {}, {"cores_few": "warning"}),
    ],
)
def test_cores_of_two_ranks(tmp_path, allowed, environ, expected):
    assert levels_by_code("cores", recorded(tmp_path, cpus(allowed), gpus=GPUS, environ=environ)) == expected


def test_cores_of_a_container(tmp_path):
    """Its quota counts, not the cores that it sees."""
    files = cpus("0-63") | {"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "200000 100000\n"}
    assert levels_by_code("cores", recorded(tmp_path, files, gpus=GPUS)) == {"cores_few": "warning"}
    assert levels_by_code(
        "cores", recorded(tmp_path, files | {"/sys/fs/cgroup/cpu.max": "max 100000\n"}, gpus=GPUS)
    ) == {"cores": "info"}


def test_adam_on_the_cpu_needs_cores(tmp_path):
    machine = recorded(tmp_path, cpus("0-5"), gpus=GPUS)
    assert levels_by_code("cores", machine) == {"cores": "info"}
    assert levels_by_code("cores", machine, DoctorTarget(recipe=Recipe.of({"offload": "cpu"}, {}))) == {
        "cores_few": "warning"
    }


def test_gpus_near_their_cores(tmp_path):
    assert levels_by_code("numa", recorded(tmp_path, cpus("0-31") | sockets(), gpus=GPUS)) == {"numa": "info"}


def test_cpuset_on_the_other_socket(tmp_path):
    finding = found_by("numa", recorded(tmp_path, cpus("0-15") | sockets(), gpus=GPUS))[0]
    assert (finding.level, finding.code) == ("warning", "numa_far")
    assert "NUMA node 1 has GPU 1" in finding.message
    assert "--cpunodebind=1" in finding.fix


def test_numa_is_skipped_where_nothing_is_known(tmp_path):
    """One node only, or a firmware that does not say where a GPU is."""
    one = cpus("0-15") | {"/sys/devices/system/node/node0/cpulist": "0-15\n"}
    assert levels_by_code("numa", recorded(tmp_path / "one", one, gpus=GPUS)) == {}
    unknown = cpus("0-15") | sockets(homes=("-1", "-1"))
    assert levels_by_code("numa", recorded(tmp_path / "unknown", unknown, gpus=GPUS)) == {}
