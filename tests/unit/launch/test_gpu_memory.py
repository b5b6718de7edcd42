"""The wait for the memory of a dead attempt's GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from dsrun.launch.supervisor.ending import GpuMemory
from dsrun.machine.gpus import memory_used

GIB = 1 << 30


def measured(*looks: dict[str, int]):
    """A driver that answers with one of `looks` after the other, and then always with the last."""
    left = list(looks)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def test_waits_until_the_memory_of_before_is_free_again() -> None:
    """What others had in use before the run need not become free."""
    memory = GpuMemory(measured({"a": 5 * GIB}, {"a": 60 * GIB}, {"a": 60 * GIB}, {"a": 5 * GIB + 1000}))
    assert memory.wait_until_free(lambda: False) == {}


def test_gives_up_and_names_what_is_held() -> None:
    memory = GpuMemory(measured({"a": 0, "b": 0}, {"a": 0, "b": 3 * GIB}))
    assert memory.wait_until_free(lambda: False, timeout_s=0.1) == {"b": 3 * GIB}


def test_stop_ends_the_wait() -> None:
    memory = GpuMemory(measured({"a": 0}, {"a": 3 * GIB}))
    assert memory.wait_until_free(lambda: True) == {"a": 3 * GIB}


def test_without_gpus_nothing_is_asked_again() -> None:
    looks = []
    memory = GpuMemory(lambda: looks.append(1) or {})
    assert memory.wait_until_free(lambda: False) == {}
    assert looks == [1]
    assert memory_used({"CUDA_VISIBLE_DEVICES": ""}) == {}


def test_used_memory_is_that_of_the_visible_gpus(tmp_path: Path) -> None:
    """The real pynvml over a small driver."""
    source = Path(__file__).parents[1] / "machine" / "fake_nvml.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", str(tmp_path / "libnvidia-ml.so.1"), str(source)], check=True)
    ask = "import json; from dsrun.machine.gpus import memory_used; print(json.dumps(memory_used()))"
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "0,3"}
    done = subprocess.run([sys.executable, "-c", ask], env=env, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"GPU-aaaa-1": 100, "GPU-cccc-4": 100}
