"""A CUDA wheel built where there is no GPU, from pip's packages alone. Minutes and gigabytes: `make test-cuda-wheel`.

Collected only with DSRUN_CUDA_PYTHON set to the interpreter of an
environment with a CUDA build of torch and the nvcc packages.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dsrun.wheel.verify.contents import read_wheel

ROOT = Path(__file__).parents[2]
ARCHS = "7.5;8.0;9.0"
OPS = ("cpu_adam", "fused_adam", "utils")


@pytest.fixture(scope="session")
def python() -> Path:
    return Path(os.environ["DSRUN_CUDA_PYTHON"])


@pytest.fixture(scope="session")
def site_packages(python):
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())


@pytest.fixture(scope="session")
def build(python, site_packages, tmp_path_factory):
    """`dsrun build-wheel`, with the nvcc of that environment and no other; the wheel's path."""
    cache = tmp_path_factory.mktemp("cache")

    def call(*args: str) -> Path:
        env = {
            **os.environ,
            "CUDA_HOME": str(next(site_packages.glob("nvidia/cu*/bin/nvcc")).parents[1]),
            "DSRUN_CACHE": os.environ.get("DSRUN_CUDA_CACHE") or str(cache),
            "PYTHONPATH": str(ROOT),
        }
        argv = [sys.executable, "-m", "dsrun", "build-wheel", "--python", str(python), *args]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return Path(done.stdout.strip())

    return call


@pytest.fixture(scope="session")
def wheel(build):
    return build("--arch", ARCHS, "--ops", ",".join(OPS))


def test_cuda_wheel_has_every_op_and_arch(wheel):
    report = read_wheel(wheel)
    assert set(report.installed_ops) == set(OPS)
    assert (report.accelerator, report.local) == ("cuda", f"cu130torch2.13.sm75.sm80.sm90.k{wheel.parent.name[:8]}")
    code = {library.op: (library.sass, library.ptx) for library in report.libraries}
    assert code == {"fused_adam": (("7.5", "8.0", "9.0"), ()), "cpu_adam": ((), ()), "utils": ((), ())}
    record = json.loads((wheel.parent / "WHEEL.json").read_text())
    assert record["inputs"]["archs"] == ARCHS
    assert record["sha256"] == report.sha256


def test_cuobjdump_finds_the_same_archs(wheel, site_packages, tmp_path):
    """NVIDIA's own reader, which comes with triton."""
    (cuobjdump,) = site_packages.glob("triton/backends/nvidia/bin/cuobjdump")
    report = read_wheel(wheel)
    with zipfile.ZipFile(wheel) as archive:
        for library in report.libraries:
            file = archive.extract(library.path, tmp_path)
            found = {
                kind: subprocess.run([cuobjdump, flag, file], capture_output=True, text=True, check=False).stdout
                for kind, flag in (("sass", "--list-elf"), ("ptx", "--list-ptx"))
            }
            for kind, text in found.items():
                seen = {f"{number[:-1]}.{number[-1]}" for number in re.findall(r"\.sm_(\d+)", text)}
                assert seen == set(getattr(library, kind)), (library.path, kind, text)


def test_cuda_wheel_imports_without_driver(wheel, python, tmp_path):
    """Unpacked beside the environment; no GPU is touched by importing."""
    with zipfile.ZipFile(wheel) as archive:
        libraries = [archive.extract(each.path, tmp_path) for each in read_wheel(wheel).libraries]
    code = """
import importlib.util, sys, torch
for path in sys.argv[1:]:
    name = path.rpartition("/")[2].partition(".")[0]
    spec = importlib.util.spec_from_file_location(name, path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    print(name)
"""
    done = subprocess.run(
        [str(python), "-c", code, *libraries], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["cpu_adam_op", "fused_adam_op", "utils_op"]


def test_cuda_wheel_build_is_reproducible(build, wheel):
    before = wheel.read_bytes()
    assert build("--arch", ARCHS, "--ops", ",".join(OPS), "--force").read_bytes() == before


def test_causal_conv1d_is_compiled_for_one_gpu_and_loads(build, python):
    """Its setup.py would compile for nine, or download a wheel. It takes 11 CPU minutes, most of them in ptxas."""
    wheel = build("causal-conv1d", "--arch", "9.0")
    (library,) = read_wheel(wheel).libraries
    assert (library.op, library.sass, library.ptx) == ("causal_conv1d_cuda", ("9.0",), ())
    argv = [sys.executable, "-m", "dsrun", "verify-wheel", str(wheel), "--python", str(python), "--format", "json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert [each["result"] for each in json.loads(done.stdout)["operations"]] == ["loaded"]
