from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    """A folder with a libnvidia-ml.so.1 of four GPUs."""
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).with_name("fake_nvml.c")
    command = ["cc", "-shared", "-fPIC", "-w", "-o", str(folder / "libnvidia-ml.so.1"), str(source)]
    subprocess.run(command, check=True)
    return folder
