"""Use, memory, power and clocks of GPUs, from a driver made for tests and from nvidia-smi's table."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from dsrun.machine.gpu_samples import gpu_samples, parse_nvidia_smi

ASK = """
import json, dataclasses
from dsrun.machine.gpu_samples import gpu_samples
print(json.dumps([dataclasses.asdict(each) for each in gpu_samples()]))
"""
TABLE = """\
0, GPU-a, NVIDIA H100 80GB HBM3, 97, 71000, 81559, 121.50, 700.00, 41, 1980, 0x0000000000000044
1, GPU-b, NVIDIA GB10, [N/A], [N/A], [N/A], 12.30, [N/A], 50, 208, 0x0000000000000001
2, GPU-c, NVIDIA T4, 0, 3, 15360, [Unknown Error], 70.00, 30, 300
"""


def samples(path, **environ: str) -> list[dict]:
    """What a fresh process finds whose libraries and programs come from `path` first."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(path), "PATH": str(path), **environ}
    answer = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True)
    return json.loads(answer.stdout)


def test_gpu_samples_of_visible_gpus_in_cuda_order(driver):
    """Those that the job sees, under the numbers that nvidia-smi gives them."""
    hopper, grace = samples(driver, CUDA_VISIBLE_DEVICES="3,2")
    assert (hopper["index"], hopper["uuid"], hopper["utilization"]) == (3, "GPU-cccc-4", 1.0)
    assert (hopper["memory_used"], hopper["memory_total"]) == (100, 4000)
    assert (hopper["power_w"], hopper["power_limit_w"]) == (123.456, 700.0)
    assert (hopper["temperature_c"], hopper["clock_mhz"]) == (61, 1410)
    assert hopper["throttled"] == ["sw_power_cap", "hw_thermal_slowdown"]
    assert (grace["memory_used"], grace["power_w"], grace["throttled"]) == (None, None, [])


def test_gpu_sample_of_mig_instance(driver):
    """Its memory is its own; power and clock are the GPU's."""
    [instance] = samples(driver, CUDA_VISIBLE_DEVICES="MIG-2222")
    assert (instance["index"], instance["uuid"], instance["utilization"]) == (1, "MIG-2222", None)
    assert (instance["memory_total"], instance["power_w"]) == (6000, 123.456)


def test_gpu_samples_from_nvidia_smi_without_nvml(driver, tmp_path):
    """Also from one that does not know why clocks are throttled."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\ncase $1 in *reasons*) exit 2;; esac\n/bin/cat <<'END'\n{TABLE}END\n")
    smi.chmod(0o755)
    environ = {"LD_LIBRARY_PATH": str(driver), "FAKE_NVML_BROKEN": "1", "CUDA_VISIBLE_DEVICES": "2,0"}
    assert [each["uuid"] for each in samples(tmp_path, **environ)] == ["GPU-c", "GPU-a"]


def test_nvidia_smi_table_with_unknown_values():
    hopper, grace, turing = parse_nvidia_smi(TABLE + "No devices were found\n")
    assert (hopper.utilization, hopper.memory_used, hopper.memory_total) == (0.97, 71000 << 20, 81559 << 20)
    assert (hopper.power_w, hopper.power_limit_w, hopper.temperature_c) == (121.5, 700.0, 41)
    assert hopper.throttled == ("sw_power_cap", "hw_thermal_slowdown")
    assert (grace.utilization, grace.memory_used, grace.power_limit_w, grace.throttled) == (None, None, None, ())
    assert (turing.power_w, turing.throttled) == (None, ())


def test_no_gpu_samples_without_driver():
    assert gpu_samples({"PATH": "/nowhere"}) == ()
