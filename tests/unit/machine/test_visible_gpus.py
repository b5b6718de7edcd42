"""Which GPUs are visible: the real pynvml over a small driver made for the test."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsrun.machine.gpus import LocalGpu, select_visible, visible_gpus

ASK = """
import dataclasses, json
from dsrun.machine.gpus import visible_gpus
print(json.dumps([len(visible_gpus()), [dataclasses.asdict(gpu) for gpu in visible_gpus()]]))
"""


def gpu(index: int, uuid: str, mig: tuple[LocalGpu, ...] = ()) -> LocalGpu:
    return LocalGpu(index=index, name="GPU", uuid=uuid, memory_total=1, capability=(8, 0), mig=mig)


PLAIN = [gpu(0, "GPU-aa11"), gpu(1, "GPU-aa22"), gpu(2, "GPU-bb33")]
MIG = [gpu(0, "GPU-aa11"), gpu(1, "GPU-aa22", (gpu(0, "MIG-1"), gpu(1, "MIG-2")))]


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        (None, "aa11 aa22 bb33"),
        ("", ""),
        ("-1", ""),
        ("NoDevFiles", ""),
        ("0", "aa11"),
        ("2,0", "bb33 aa11"),
        (" 1 , 2 ", "aa22 bb33"),
        ("0,3,1", "aa11"),  # an invalid index ends the list
        ("0,-1,1", "aa11"),
        ("0,,1", "aa11"),
        ("1x,2", "aa22 bb33"),
        ("0,0", ""),  # a GPU named twice
        ("GPU-bb", "bb33"),
        ("GPU-aa22,GPU-aa11", "aa22 aa11"),
        ("GPU-aa", ""),  # not unique
        ("GPU-zz,0", ""),
        ("MIG-1", ""),
    ],
)
def test_cuda_visible_devices(visible, uuids):
    found = select_visible(PLAIN, visible)
    assert [gpu.uuid for gpu in found] == [f"GPU-{uuid}" for uuid in uuids.split()]
    assert [gpu.index for gpu in found] == list(range(len(found)))


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        ("0", ["GPU-aa11"]),
        ("1", ["MIG-1"]),  # a GPU in MIG mode shows as its first instance
        ("MIG-2", ["MIG-2"]),
        ("MIG-2,MIG-1", ["MIG-2"]),  # a process sees one instance
        (None, ["MIG-1"]),
    ],
)
def test_cuda_visible_devices_with_mig(visible, uuids):
    assert [gpu.uuid for gpu in select_visible(MIG, visible)] == uuids


def ask(path: Path, **environ: str) -> tuple[int, list[dict]]:
    """What a fresh process finds whose libraries and programs come from `path` first."""
    environment = {
        **{key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"},
        "LD_LIBRARY_PATH": f"{path}:{os.environ.get('LD_LIBRARY_PATH', '')}",
        "PATH": str(path),
        **environ,
    }
    answer = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True)
    assert answer.stderr == ""
    count, found = json.loads(answer.stdout)
    return count, found


def test_visible_gpus_from_nvml(driver):
    count, found = ask(driver, CUDA_VISIBLE_DEVICES="3,2,0")
    assert count == 3
    assert [(entry["name"], entry["capability"], entry["memory_total"]) for entry in found] == [
        ("NVIDIA H200", [9, 0], 4000),
        ("NVIDIA GB10", [12, 1], None),
        ("NVIDIA A100-SXM4-80GB", [8, 0], 1000),
    ]


def test_nvml_mig_instances(driver):
    count, found = ask(driver, CUDA_VISIBLE_DEVICES="MIG-2222")
    assert (count, found[0]["name"], found[0]["capability"]) == (
        1,
        "NVIDIA A100-SXM4-80GB MIG 2g.20gb",
        [8, 0],
    )
    assert [mig["uuid"] for mig in ask(driver, CUDA_VISIBLE_DEVICES="1")[1]] == ["MIG-1111"]


def test_empty_cuda_visible_devices_hides_gpus(driver):
    assert ask(driver, CUDA_VISIBLE_DEVICES="") == (0, [])


def test_no_gpu_without_nvml(driver):
    assert ask(driver, FAKE_NVML_BROKEN="1") == (0, [])


def test_no_visible_gpu_is_no_error():
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "", "PATH": ""}) == []
