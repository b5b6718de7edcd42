"""The wheel of DeepSpeed's operations for these GPUs: `python -m bench.gpu.wheel wait|verify`.

It is compiled in the background, at low priority, beside the first blocks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.gpu.few import dry, tell, work
from bench.processes import COMMAND_S, HOUR_S, LimitedProcess, run

NICE = 15
BUILD_S = 2 * HOUR_S


@contextmanager
def building(folder: Path) -> Iterator[None]:
    """Compile meanwhile; what is not finished at the end is ended."""
    argv = [sys.executable, "-m", "bench.gpu.wheel", "build", str(folder)]
    root = Path(__file__).parents[2]
    with LimitedProcess(argv, what="the wheel's build", limit_s=BUILD_S, cwd=root, start_new_session=True):
        yield


def build(folder: Path) -> int:
    """What a user would run; its path, exit code and seconds are kept in `folder`."""
    os.nice(NICE)
    began = time.monotonic()
    with (folder / "build.log").open("wb") as log:
        argv = [sys.executable, "-m", "dsrun", "build-wheel", "--arch", "auto"]
        done = run(argv, what="dsrun build-wheel", limit_s=BUILD_S, stdout=subprocess.PIPE, stderr=log, text=True)
    path = "".join(done.stdout.strip().splitlines()[-1:])
    partial = folder / "wheel.json.part"
    partial.write_text(json.dumps({"path": path, "code": done.returncode, "seconds": time.monotonic() - began}))
    partial.rename(folder / "wheel.json")
    return done.returncode


def wait(folder: Path) -> int:
    """Until it is there; the block's time limit is shorter."""
    deadline = time.monotonic() + BUILD_S
    while not (folder / "wheel.json").exists():
        if time.monotonic() > deadline:
            sys.exit(f"error: no wheel came within {BUILD_S:g} s; see {folder / 'build.log'}")
        time.sleep(0.5)
    made = json.loads((folder / "wheel.json").read_text())
    print((folder / "build.log").read_text(errors="replace")[-8000:])
    tell(f"exit code {made['code']} after {made['seconds']:.0f} s: {Path(made['path']).name}")
    return int(made["code"])  # 4 where a compiler is missing, which is no failure


def verify(folder: Path) -> int:
    """Verified and installed here, and the tests that need it."""
    if not (folder / "wheel.json").exists() or json.loads((folder / "wheel.json").read_text())["code"]:
        print("there is no wheel")
        return 4
    path = json.loads((folder / "wheel.json").read_text())["path"]
    argv = [sys.executable, "-m", "dsrun", "verify-wheel", path]
    checked = run(argv, what="dsrun verify-wheel", limit_s=HOUR_S).returncode
    tell(f"verify-wheel: exit code {checked}")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    run([*pip, "--force-reinstall", path], what="pip install", limit_s=COMMAND_S, check=True)
    files = ["tests/gpu/test_gpu_ops.py", "tests/gpu/test_gpu_training.py"]
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "120", "--tb=short"]
    argv = [*pytest, *files, "-k", "test_gpu_ops or offload"]
    tested = run(argv, what="pytest tests/gpu", limit_s=HOUR_S, compiles=True, stdout=subprocess.PIPE, text=True)
    print(tested.stdout)
    tell("operations and offload: " + "".join(tested.stdout.strip().splitlines()[-1:]))
    return 1 if checked or tested.returncode else 0


if __name__ == "__main__":
    if sys.argv[1] == "build":
        sys.exit(build(Path(sys.argv[2])))
    if dry():
        tell("not compiled without a GPU")
        sys.exit(0)
    sys.exit({"wait": wait, "verify": verify}[sys.argv[1]](work()))
