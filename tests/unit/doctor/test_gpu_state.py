"""What is read of each GPU: the real pynvml over a small driver made for the test."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ASK = """
import dataclasses, json, os
from dsrun.doctor.gpu import nvml
if os.environ.get("FAKE_NVML_HANGS"):
    nvml.ANSWER_S = 0.1
print(json.dumps(dataclasses.asdict(nvml.query_gpus())))
"""


@pytest.fixture(scope="module")
def ailing(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).with_name("fake_ailing_nvml.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", str(folder / "libnvidia-ml.so.1"), str(source)], check=True)
    return folder


def ask(folder: Path, **more: str) -> dict:
    environment = {**os.environ, "LD_LIBRARY_PATH": f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}", **more}
    answer = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True)
    return json.loads(answer.stdout)


def test_gpu_state_from_nvml(ailing):
    """Every field of the first GPU; the third knows nothing but its name, and the fourth is another user's."""
    answer = ask(ailing)
    first, third = answer["gpus"]
    assert first == {
        "index": 0, "name": "NVIDIA H100", "uuid": "GPU-1", "bus": "0000:3b:00.0", "persistence": False, "mig": True,
        "compute_mode": 3, "performance_state": 0, "throttle_reasons": 0x48, "temperature_c": 91, "power_limit_w": 350,
        "power_limit_default_w": 700, "ecc_uncorrected": 2, "remap_pending": True, "remap_failed": False,
        "retirement_pending": None, "pcie_generation": 1, "pcie_generation_max": 5, "pcie_width": 8,
        "pcie_width_max": 16, "nvlinks": [True, False, True], "fabric": 2, "peers": [0, None, 4],
    }  # fmt: skip
    assert (third["index"], third["name"], third["nvlinks"], third["peers"]) == (2, "NVIDIA H100", [], [None, None, 0])
    assert {name for name, value in third.items() if value is None} >= {
        "mig",
        "fabric",
        "ecc_uncorrected",
        "pcie_width",
    }
    assert (answer["lost"], answer["error"]) == ([1], None)


def test_nvml_that_does_not_answer(ailing):
    answer = ask(ailing, FAKE_NVML_BROKEN="1")
    assert (answer["error"], answer["gpus"]) == (18, [])
    assert ask(Path("/nowhere"))["error"] in (12, 9, None)


def test_driver_that_hangs(ailing):
    """The question is given up; the process ends all the same."""
    answer = ask(ailing, FAKE_NVML_HANGS="1")
    assert (answer["error"], answer["message"]) == (-1, "no answer within 0.1 s")
