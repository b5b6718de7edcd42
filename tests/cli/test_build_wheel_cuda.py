"""`dsrun build-wheel --dry-run` for GPUs, in an environment whose torch and CUDA toolkit are there by name only."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from dsrun.wheel.cache import LOG_NAME, RECORD_NAME, sha256_of

NVCC = """#!/bin/sh
echo "Cuda compilation tools, release 13.0, V13.0.88"
"""
HEADERS = (
    "cuda.h", "cuda_runtime.h", "cuda_runtime_api.h", "cublas_v2.h", "cusparse.h", "cusolverDn.h", "cusolver_common.h",
    "cublasLt.h", "curand.h", "curand_kernel.h", "cuda_profiler_api.h",
)  # fmt: skip


@pytest.fixture(autouse=True)
def toolkit(environ, tmp_path):
    """An nvcc that knows its version, and headers with nothing in them."""
    home = tmp_path / "cuda"
    for folder in ("bin", "include", "lib64"):
        (home / folder).mkdir(parents=True)
    (home / "bin/nvcc").write_text(NVCC)
    (home / "bin/nvcc").chmod(0o755)
    for name in HEADERS:
        (home / "include" / name).touch()
    environ |= {"CUDA_HOME": str(home), "DSRUN_CACHE": str(tmp_path / "cache")}
    return home


@pytest.fixture
def python(tmp_path):
    """An environment that sees this one's packages, but in front of them a torch for CUDA 13.0."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    packages = next((tmp_path / "env").glob("lib/*/site-packages"))
    (packages / "zz-behind.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    (packages / "torch").mkdir()
    (packages / "torch/__init__.py").touch()
    (packages / "torch/version.py").write_text("__version__ = '2.13.0+cu130'\ncuda = '13.0'\nhip = None\n")
    return str(tmp_path / "env/bin/python")


@pytest.fixture
def dry(dsrun, python):
    return lambda *args: dsrun("build-wheel", "--dry-run", "--python", python, *args)


def blocks(done):
    """The dry run's script by operation."""
    assert done.returncode == 0, done.stderr
    return {block.partition("\n")[0]: block for block in done.stdout.removeprefix("# ").split("\n# ")}


def test_arch_list_in_build_script(dry):
    done = dry("--arch", "h100+PTX, 8.0;turing", "--ops", "fused_adam,cpu_adam")
    parts = blocks(done)
    assert list(parts) == ["fused_adam", "cpu_adam"]
    for block in parts.values():
        assert "export TORCH_CUDA_ARCH_LIST='7.5;8.0;9.0+PTX'\n" in block
        assert "export DS_ACCELERATOR=cuda\n" in block
        assert "export DS_BUILD_STRING=+cu130torch2.13.sm75.sm80.sm90ptx\n" in block
    assert "export DS_BUILD_FUSED_ADAM=1\n" in parts["fused_adam"]
    assert "export DS_BUILD_FUSED_ADAM=0\n" in parts["cpu_adam"]


def test_split_makes_two_wheels_below_and_above_8_0(dry):
    done = dry("--arch", "7.5,8.6,9.0", "--ops", "fused_adam", "--split")
    lists = [line for line in done.stdout.splitlines() if "TORCH_CUDA_ARCH_LIST" in line]
    assert lists == ["export TORCH_CUDA_ARCH_LIST=7.5", "export TORCH_CUDA_ARCH_LIST='8.6;9.0'"]
    assert done.stderr.count("would be cached in") == 2


def test_bf16_switched_off_names_the_ops(dry):
    message = dry("--arch", "7.5,8.0", "--ops", "fused_adam,quantizer").stderr
    assert "switches bf16 off in quantizer for all GPUs" in message
    assert "--split" in message
    assert "switches bf16 off" not in dry("--arch", "7.5,8.0", "--ops", "fused_adam").stderr
    assert "switches bf16 off" not in dry("--arch", "8.0,9.0", "--ops", "quantizer").stderr
    assert "switches bf16 off" not in dry("--arch", "7.5,8.0", "--ops", "quantizer", "--split").stderr


def test_cuda_torch_without_gpu_asks_for_arch(dry):
    done = dry("--ops", "fused_adam")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--arch a100,h100" in done.stderr.splitlines()[-1]


def test_gpu_too_old_for_cuda_names_last_versions(dry):
    """A GPU too old for this CUDA is told the last torch and CUDA that support it."""
    done = dry("--arch", "v100,a100", "--ops", "fused_adam")
    assert (done.returncode, done.stdout) == (2, "")
    assert "torch 2.10" in done.stderr.splitlines()[-1]


def test_nvcc_of_other_major_version(dry, toolkit):
    (toolkit / "bin/nvcc").write_text(NVCC.replace("13.0", "12.4"))
    done = dry("--arch", "a100", "--ops", "fused_adam")
    assert done.returncode == 2
    assert "12.4" in done.stderr.splitlines()[-1]


def test_missing_cuda_header_names_install_command(dry, toolkit):
    (toolkit / "include/cublas_v2.h").unlink()
    done = dry("--arch", "a100", "--ops", "fused_adam")
    assert (done.returncode, done.stdout) == (4, "")
    assert "install" in done.stderr.splitlines()[-1]


def test_split_prints_two_wheels_with_own_records(dry, dsrun, python, here, tmp_path):
    """Both wheels are in the store already: nothing here could compile them."""
    args = ("--arch", "7.5,9.0", "--ops", "fused_adam", "--split")
    names = []
    for key in re.findall(r"/wheels/([0-9a-f]{20})$", dry(*args).stderr, re.MULTILINE):
        entry = tmp_path / "cache/wheels" / key
        entry.mkdir(parents=True)
        names.append(f"deepspeed-0.19.8+part{len(names)}-cp311-cp311-linux_x86_64.whl")
        (entry / names[-1]).write_text(key)
        (entry / LOG_NAME).touch()
        record = {"version": 1, "wheel": names[-1], "sha256": sha256_of(entry / names[-1])}
        (entry / RECORD_NAME).write_text(json.dumps(record))
    assert len(names) == 2
    lines = dsrun("build-wheel", "--python", python, *args).stdout.splitlines()
    assert [line.rpartition("/")[2] for line in lines] == names
    done = dsrun("build-wheel", "--python", python, *args, "-o", "dist")
    assert done.stdout.splitlines() == [
        f"dist/cu130torch2.13.sm75/{names[0]}",
        f"dist/cu130torch2.13.sm90/{names[1]}",
    ]
    for line, name in zip(done.stdout.splitlines(), names, strict=True):
        assert json.loads((here / line).with_name("WHEEL.json").read_text())["wheel"] == name


@pytest.fixture
def kernels(python):
    """The package that ragged_device_ops needs, by name."""
    folder = next(Path(python).parents[1].glob("lib/*/site-packages")) / "dskernels"
    folder.mkdir()
    (folder / "__init__.py").touch()


@pytest.mark.usefixtures("kernels")
def test_split_leaves_op_out_of_older_arch_part(dry):
    """Its builder drops everything below 8.0: a wheel for 7.5 could only fail, when all else was compiled."""
    done = dry("--arch", "7.5,9.0", "--ops", "fused_adam,ragged_device_ops", "--split")
    old, new = done.stdout.split("# ragged_device_ops\n")
    assert "TORCH_CUDA_ARCH_LIST=7.5" in old
    assert "TORCH_CUDA_ARCH_LIST=9.0" in new
    assert "note: the wheel for 7.5 is without ragged_device_ops, which is for 8.0 and above" in done.stderr
    done = dry("--arch", "7.5,9.0", "--ops", "ragged_device_ops", "--split")
    assert (done.returncode, done.stdout) == (2, "")
    assert "leave no operation for 7.5" in done.stderr


@pytest.mark.usefixtures("kernels")
def test_op_for_newer_gpus_left_out_or_refused(dry):
    """A group leaves out what is for newer GPUs; asked for by name it is refused."""
    done = dry("--arch", "7.5", "--ops", "all")
    assert "# fused_adam\n" in done.stdout
    assert "# ragged_device_ops\n" not in done.stdout
    assert "note: left out: ragged_device_ops, because it is for GPUs of compute capability 8.0" in done.stderr
    done = dry("--arch", "7.5", "--ops", "all,ragged_device_ops")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--ops …,-ragged_device_ops leaves it out" in done.stderr
