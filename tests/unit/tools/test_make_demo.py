"""`make demo` on machines with and without a GPU, with stand-ins for dsrun, Python and nvidia-smi."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HAS_GPU = any(Path("/dev").glob("nvidia[0-9]*"))


@pytest.mark.parametrize(
    ("has_driver", "sees_gpu", "more"),
    [(True, True, ""), (True, False, " --use-cpu --nproc 2"), (False, False, " --nproc 2")],
    ids=["gpu", "torch-sees-none", "no-driver"],
)
def test_demo_trains_on_what_torch_sees(tmp_path, has_driver, sees_gpu, more):
    """`dsrun train` refuses a machine whose GPUs torch does not see, and the demo has nobody to say --use-cpu."""
    if HAS_GPU and not has_driver:
        pytest.skip("this machine has GPUs")
    tools = tmp_path / "bin"
    tools.mkdir()
    bodies = {
        "dsrun": "echo dsrun $*",
        "python": f"exit {int(not sees_gpu)}",
        "nvidia-smi": f"exit {int(not has_driver)}",
    }
    for name, body in bodies.items():
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)
    (tmp_path / ".train").touch()
    environ = {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    made = subprocess.run(
        ["make", "--silent", "demo", f"VENV={tmp_path}"],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout.endswith(f"--resume never --force{more}\n")
