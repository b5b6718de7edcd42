"""What the driver says: the real pynvml over a small driver made for the test."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ASK = """
import json
from dsrun.machine.driver import query_driver
found = query_driver()
print(json.dumps(found and {
    "version": found.version, "cuda": found.cuda,
    "visible": [gpu.uuid for gpu in found.visible({"CUDA_VISIBLE_DEVICES": "3"})],
    "free": {uuid: memory.free for uuid, memory in found.memory.items()},
    "holders": {uuid: list(map(str, memory.holders)) for uuid, memory in found.memory.items() if memory.holders},
    "used": [holder.used for holder in found.memory["GPU-aaaa-1"].holders],
}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("driver")
    source = Path(__file__).with_name("fake_busy_nvml.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", str(made / "libnvidia-ml.so.1"), str(source)], check=True)
    return made


def ask(folder: Path, **environ: str):
    environment = os.environ | {"LD_LIBRARY_PATH": str(folder), "FAKE_NVML_PID": str(os.getpid())} | environ
    done = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_driver_version_memory_and_holders(folder: Path) -> None:
    found = ask(folder, CUDA_VISIBLE_DEVICES="")
    assert (found["version"], found["cuda"], found["visible"]) == ("580.65.06", "13.2", ["GPU-cccc-4"])
    plain = {"GPU-aaaa-1": 900, "GPU-aaaa-2": 1900, "GPU-bbbb-3": None, "GPU-cccc-4": 3900}
    assert found["free"] == plain | {"MIG-1111": 4900, "MIG-2222": 5900}
    (own, unknown) = found["holders"]["GPU-aaaa-1"]
    assert str(os.getpid()) in own
    assert " of " in own
    assert unknown == "process 4194305"
    assert found["used"] == [90, None]


def test_no_driver(folder: Path) -> None:
    assert ask(folder, FAKE_NVML_BROKEN="1") is None
