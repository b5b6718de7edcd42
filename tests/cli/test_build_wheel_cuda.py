"""`dsrun build-wheel --dry-run` for GPUs, in an environment whose torch and CUDA toolkit are there by name only."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig

import pytest

NVCC = """#!/bin/sh
case $1 in
--list-gpu-code) printf 'sm_%s\\n' 75 80 86 89 90 100 120 ;;
*) echo "Cuda compilation tools, release 13.0, V13.0.88" ;;
esac
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
    """The dry run's script by operation: a comment line with its name stands in front of each."""
    assert done.returncode == 0, done.stderr
    pieces = re.split(r"^# ([a-z_]+)$", done.stdout, flags=re.MULTILINE)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def test_arch_list_in_build_script(dry):
    done = dry("--arch", "h100+PTX, 8.0;turing", "--ops", "fused_adam,cpu_adam")
    parts = blocks(done)
    assert list(parts) == ["fused_adam", "cpu_adam"]
    for block in parts.values():
        assert "export TORCH_CUDA_ARCH_LIST='7.5;8.0;9.0+PTX'\n" in block
        assert "export DS_ACCELERATOR=cuda\n" in block
    assert "export DS_BUILD_FUSED_ADAM=1\n" in parts["fused_adam"]
    assert "export DS_BUILD_FUSED_ADAM=0\n" in parts["cpu_adam"]
    assert "# DeepSpeed 0.19.8+cu130torch2.13.sm75.sm80.sm90ptx.k" in done.stdout


def test_bf16_switched_off_names_the_ops(dry):
    message = dry("--arch", "7.5,8.0", "--ops", "fused_adam,quantizer").stderr
    assert "switches bf16 off in quantizer for all GPUs" in message
    assert '[bf16_switched_off] (build two wheels: --arch "7.5" and --arch "8.0"' in message
    assert "switches bf16 off" not in dry("--arch", "7.5,8.0", "--ops", "fused_adam").stderr
    assert "switches bf16 off" not in dry("--arch", "8.0,9.0", "--ops", "quantizer").stderr


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


def test_another_package_is_compiled_for_these_gpus_alone(dry):
    """Whatever its setup.py gives nvcc; and by its own setup.py, without a download of what others compiled."""
    done = dry("causal-conv1d", "--arch", "8.0,9.0")
    assert done.returncode == 0, done.stderr
    assert "export CAUSAL_CONV1D_FORCE_BUILD=TRUE\n" in done.stdout
    assert "export DS_" not in done.stdout
    assert " -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=sm_90\n" in done.stdout
    assert "# causal-conv1d 1.7.0+cu130torch2.13.sm80.sm90.k" in done.stdout


def test_package_for_newer_gpus(dry):
    refused = dry("flash-attn", "--arch", "7.5")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "8.0 and above" in refused.stderr.splitlines()[-1]
    given = json.loads(dry("flash-attn", "--arch", "7.5,8.0", "--format", "json").stdout)
    assert [each["code"] for each in given["findings"]] == ["arch_left_out"]
    assert (given["inputs"]["package"], given["inputs"]["ops"]) == ("flash-attn", ["flash_attn_2_cuda"])


def test_dry_run_as_json(dry):
    given = json.loads(dry("--arch", "7.5,8.0", "--ops", "quantizer", "--format", "json").stdout)
    assert given["inputs"]["archs"] == "7.5;8.0"
    assert given["script"].startswith("#!/bin/sh\n")
    assert len(given["key"]) == 20
    assert [each["code"] for each in given["findings"] if each["level"] == "warning"] == ["bf16_switched_off"]


def test_finding_codes_are_printed(dry):
    refused = dry("--arch", "v100,a100", "--ops", "fused_adam").stderr
    assert "[nvcc_cannot_compile]" in refused.splitlines()[-1]
