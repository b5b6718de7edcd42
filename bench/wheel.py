"""A wheel by `dsrun build-wheel` against the command from DeepSpeed's guide: same operations, same targets, one run.

    stock      DS_BUILD_…=1 pip wheel --no-build-isolation --no-deps --no-cache-dir SDIST
    cold       dsrun build-wheel, with an empty store and no compiler cache
    warm       the same with the store gone and a filled compiler cache, where ccache or sccache is installed
    unchanged  the same request once more

Whole processes, wall clock. The stock command compiles for this processor, keeps debug symbols and compiles one file
after the other: that is what it does unless told otherwise.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from bench.processes import HOUR_S, run
from dsrun.machine.torch_facts import torch_facts
from dsrun.system.variables import cache_root
from dsrun.wheel.compile.build_environment import FLAGS
from dsrun.wheel.platform.cxx import compiler_cache
from dsrun.wheel.platform.wheel_package import wheel_package
from dsrun.wheel.sdist import fetch_sdist

UNCHANGED_LIMIT_S = 2.0
BUILD_S = 3 * HOUR_S
"""Of one build: the stock command compiles one file after the other."""
ON_CPU = ("cpu", "cpu_adam,cpu_lion", ("DS_BUILD_CPU_ADAM", "DS_BUILD_CPU_LION"))
ON_GPU = (
    "8.0;9.0",
    "fused_adam,cpu_adam,utils",
    ("DS_BUILD_FUSED_ADAM", "DS_BUILD_CPU_ADAM", "DS_BUILD_UTILS"),
)
LINE = "{:10} {:>8} {:>12} {:>10}"


def main() -> bool:
    """Print the table; whether the unchanged request was answered within its limit."""
    torch = torch_facts(sys.executable)
    arch, ops, variables = ON_GPU if torch and torch.cuda else ON_CPU
    lock = wheel_package()
    with tempfile.TemporaryDirectory(prefix="dsrun-bench-") as scratch:
        folder = Path(scratch)
        sdist = fetch_sdist(lock.default, lock.sdist[lock.default], cache_root() / "sdists")
        env = _environment(folder)
        (folder / "cache/sdists").mkdir(parents=True)
        shutil.copyfile(sdist, folder / "cache/sdists" / sdist.name)
        print(f"{ops} for {arch}, DeepSpeed {lock.default}, {os.cpu_count()} cores")
        print(LINE.format("", "seconds", "stock takes", "MB"))
        stock = _report("stock", None, *_stock(sdist, folder, env, arch, variables))
        _report("cold", stock, *_dsrun(arch, ops, {**env, "CCACHE_DISABLE": "1"}))
        if compiler_cache(env):
            for _ in range(2):  # the first fills the compiler cache
                shutil.rmtree(folder / "cache/wheels")
                timed = _dsrun(arch, ops, env)
            _report("warm", stock, *timed)
        unchanged = _report("unchanged", stock, *_dsrun(arch, ops, env))
    held = unchanged < UNCHANGED_LIMIT_S
    print(f"unchanged in under {UNCHANGED_LIMIT_S:g} s: {'yes' if held else 'NO'}")
    return held


def _environment(folder: Path) -> dict[str, str]:
    """This environment without anybody's build flags, with a store and a compiler cache of the benchmark's own."""
    kept = {name: value for name, value in os.environ.items() if name not in FLAGS}
    own = {"DSRUN_CACHE": str(folder / "cache"), "CCACHE_DIR": str(folder / "ccache")}
    return {**kept, **own, "PATH": f"{Path(sys.executable).parent}:{kept.get('PATH', '')}"}


def _stock(sdist: Path, folder: Path, env: dict[str, str], arch: str, variables: tuple[str, ...]) -> tuple[float, Path]:
    target = {"DS_ACCELERATOR": "cpu"} if arch == "cpu" else {"DS_ACCELERATOR": "cuda", "TORCH_CUDA_ARCH_LIST": arch}
    switches = dict.fromkeys(variables, "1")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-cache-dir"]
    began = time.monotonic()
    _run(
        [*pip, "--wheel-dir", str(folder / "stock"), str(sdist)],
        {**env, **target, **switches, "CCACHE_DISABLE": "1"},
    )
    return time.monotonic() - began, next((folder / "stock").glob("*.whl"))


def _dsrun(arch: str, ops: str, env: dict[str, str]) -> tuple[float, Path]:
    began = time.monotonic()
    out = _run([sys.executable, "-m", "dsrun", "build-wheel", "--arch", arch, "--ops", ops], env)
    return time.monotonic() - began, Path(out.strip())


def _run(argv: list[str], env: dict[str, str]) -> str:
    done = run(argv, what=" ".join(argv[1:4]), limit_s=BUILD_S, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(argv)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def _report(name: str, stock: float | None, seconds: float, wheel: Path) -> float:
    ratio = f"{stock / seconds:.1f} x" if stock else ""
    print(LINE.format(name, f"{seconds:.1f}", ratio, f"{wheel.stat().st_size / 1e6:.1f}"), flush=True)
    return seconds
