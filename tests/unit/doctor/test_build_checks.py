"""Compilers, compilation at first use, and its cache."""

import os
import time
from pathlib import Path

import pytest

from dsrun.doctor.job.settings import ops_of
from tests.fake_programs import program
from tests.tiny_wheels import built_note, compiled, needs_gcc
from tests.unit.doctor.recorded import A100, FINE, codes, driver, found_by, job, levels, recorded, torch_at

OFFLOADED = ("--model", "m", "--zero", "3", "--offload", "cpu")
ON_NVME = ("--model", "m", "--zero", "3", "--offload", "nvme", "--nvme-path", "/scratch")


def toolkit(home: Path, version: str, newest_gcc: int = 99) -> Path:
    """A CUDA toolkit whose nvcc says its version alone."""
    program(
        home / "bin/nvcc", f'[ "$1" = --version ] && echo "Cuda compilation tools, release {version}, V{version}.1"'
    )
    (home / "include/crt").mkdir(parents=True)
    (home / "include/cuda_runtime.h").touch()
    (home / "include/crt/host_config.h").write_text(f"#if __GNUC__ > {newest_gcc}\n")
    return home


def gcc(folder: Path, version: int) -> Path:
    macros = f"#define __GNUC__ {version}\\n#define __GNUC_MINOR__ 1\\n#define __cplusplus 202002L\\n"
    return program(folder / "g++", f"printf '{macros}'")


@pytest.mark.parametrize(("version", "found"), [("13.0", []), ("13.2", []), ("12.4", ["cuda_toolkit_version"])])
def test_nvcc_of_another_major_version(tmp_path: Path, version, found) -> None:
    home = toolkit(tmp_path / "cuda", version)
    here = recorded(tmp_path, environ={"CUDA_HOME": str(home)}, packages={"torch": torch_at(tmp_path)})
    result = found_by("cuda_toolkit", here)
    assert codes(result) == found
    assert levels(result) == (["warning"] if found else FINE)  # no job that needs it is known


def test_cuda_home_without_nvcc(tmp_path: Path) -> None:
    here = recorded(tmp_path, environ={"CUDA_HOME": "/opt/nothing"}, packages={"torch": torch_at(tmp_path)})
    assert codes(found_by("cuda_toolkit", here)) == ["cuda_toolkit_home"]


def test_missing_nvcc_matters_where_job_compiles_with_it(tmp_path: Path) -> None:
    here = recorded(tmp_path, environ={"PATH": ""}, packages={"torch": torch_at(tmp_path)})
    assert levels(found_by("cuda_toolkit", here)) == FINE
    (tmp_path / "ds.json").write_text('{"optimizer": {"type": "Adam"}, "zero_optimization": {"stage": 2}}')
    fused = job(tmp_path, "--model", "m", "--deepspeed", "ds.json")
    assert ops_of(fused) == ["fused_adam"]
    assert codes(found_by("cuda_toolkit", here, fused)) == ["cuda_toolkit_missing"]
    deepspeed = tmp_path / "deepspeed"
    deepspeed.mkdir()
    (deepspeed / "git_version_info_installed.py").write_text(built_note(["fused_adam"], "cuda"))
    built = recorded(tmp_path, environ={"PATH": ""}, packages={"torch": tmp_path / "torch", "deepspeed": deepspeed})
    assert levels(found_by("cuda_toolkit", built, fused)) == FINE


def test_host_compiler_newer_than_nvcc_accepts(tmp_path: Path) -> None:
    home = toolkit(tmp_path / "cuda", "13.0", newest_gcc=15)
    environ = {"CUDA_HOME": str(home), "PATH": str(tmp_path / "bin")}
    gcc(tmp_path / "bin", 16)
    here = recorded(tmp_path, environ=environ, packages={"torch": torch_at(tmp_path)})
    found = found_by("host_compiler", here)
    assert codes(found) == ["host_compiler_version"]
    assert "install gcc 15" in found[0].fix
    gcc(tmp_path / "older", 14).rename(tmp_path / "bin/g++-14")
    assert f"export CXX={tmp_path}/bin/g++-14 CC={tmp_path}/bin/gcc-14" in found_by("host_compiler", here)[0].fix
    gcc(tmp_path / "bin", 13)
    assert levels(found_by("host_compiler", here)) == FINE


@pytest.mark.parametrize(("argv", "level"), [(None, "warning"), (OFFLOADED, "error")])
def test_missing_host_compiler(tmp_path: Path, argv, level) -> None:
    """A warning, unless the job compiles: CPU Adam needs it."""
    here = recorded(tmp_path, environ={"PATH": ""}, packages={"torch": torch_at(tmp_path)})
    found = found_by("host_compiler", here, job(tmp_path, *argv) if argv else None)
    assert (codes(found), levels(found)) == (["host_compiler_missing"], [level])


def mounts(folder: Path, kind: str, options: str = "rw") -> dict[str, str]:
    return {"/proc/self/mounts": f"/dev/sda1 / ext4 rw 0 0\nserver:/x {folder} {kind} {options} 0 0\n"}


def with_cache(tmp_path: Path, kind: str = "ext4", options: str = "rw", now: float | None = None):
    cache = tmp_path / "ext"
    cache.mkdir(exist_ok=True)
    return recorded(
        tmp_path / "root",
        files=mounts(cache, kind, options),
        environ={"TORCH_EXTENSIONS_DIR": str(cache)},
        packages={"torch": torch_at(tmp_path)},
        now=time.time() if now is None else now,
    ), cache


def test_jit_cache_on_local_disk_is_fine(tmp_path: Path) -> None:
    here, _ = with_cache(tmp_path)
    found = found_by("jit_cache", here)
    assert levels(found) == FINE
    assert "on ext4" in found[0].message


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.juicefs"])
def test_jit_cache_on_network_file_system(tmp_path: Path, kind) -> None:
    here, _ = with_cache(tmp_path, kind)
    assert codes(found_by("jit_cache", here)) == ["jit_cache_network"]


def test_triton_cache_on_network_file_system(tmp_path: Path) -> None:
    """Only with GPUs: nothing else uses Triton."""
    cache = tmp_path / "ext"
    cache.mkdir()
    environ = {"TORCH_EXTENSIONS_DIR": str(tmp_path), "TRITON_CACHE_DIR": str(cache)}
    common = {"files": mounts(cache, "nfs4"), "environ": environ, "packages": {"torch": torch_at(tmp_path)}}
    found = found_by("jit_cache", recorded(tmp_path / "a", **common, found=driver(A100)))
    assert codes(found) == ["jit_cache_triton"]
    assert levels(found_by("jit_cache", recorded(tmp_path / "b", **common))) == FINE


def test_jit_cache_mounted_noexec(tmp_path: Path) -> None:
    here, _ = with_cache(tmp_path, options="rw,noexec")
    assert codes(found_by("jit_cache", here)) == ["jit_cache_noexec"]


def test_stale_jit_lock(tmp_path: Path) -> None:
    """A lock that a process has open is in use; one on a network file system may be another node's for half an hour."""
    here, cache = with_cache(tmp_path, now=time.time() + 7300)
    lock = cache / "fused_adam/lock"
    lock.parent.mkdir()
    held = os.open(lock, os.O_CREAT | os.O_EXCL)
    assert levels(found_by("jit_cache", here)) == FINE
    os.close(held)
    found = found_by("jit_cache", here)
    assert codes(found) == ["jit_cache_lock"]
    assert found[0].fix == f"rm {lock}"
    assert "2.0 h ago" in found[0].message
    assert "jit_cache_lock" not in codes(found_by("jit_cache", with_cache(tmp_path, "nfs4")[0]))
    assert "jit_cache_lock" in codes(found_by("jit_cache", with_cache(tmp_path, "nfs4", now=time.time() + 7300)[0]))


def test_job_that_compiles_at_its_start(tmp_path: Path) -> None:
    here = recorded(tmp_path, environ={"PATH": os.environ["PATH"]}, packages={"torch": torch_at(tmp_path)})
    found = found_by("build_tools", here, job(tmp_path, *OFFLOADED))
    assert codes(found) == ["build_tools_compiles"]
    assert "cpu_adam" in found[0].message
    assert found_by("build_tools", here, job(tmp_path, "--model", "m", "--zero", "2")) == []


def test_missing_ninja(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "bin/python"))
    here = recorded(tmp_path, environ={"PATH": ""}, packages={"torch": torch_at(tmp_path)})
    assert codes(found_by("build_tools", here, job(tmp_path, *OFFLOADED))) == ["build_tools_ninja"]


def test_missing_libaio(tmp_path: Path) -> None:
    (tmp_path / "usr/include").mkdir(parents=True)
    (tmp_path / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    here = recorded(tmp_path, environ={"PATH": os.environ["PATH"]}, packages={"torch": torch_at(tmp_path)})
    assert "build_tools_libaio" in codes(found_by("build_tools", here, job(tmp_path, *ON_NVME)))
    (tmp_path / "usr/include/libaio.h").touch()
    (tmp_path / "usr/lib/x86_64-linux-gnu/libaio.so.1t64").touch()
    assert "build_tools_libaio" not in codes(found_by("build_tools", here, job(tmp_path, *ON_NVME)))


@needs_gcc
def test_wheel_for_a_newer_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSRUN_CACHE", str(tmp_path / "cache"))
    deepspeed = tmp_path / "deepspeed"
    code = "void add(float *a, float *b) { for (int i = 0; i < 4096; i++) a[i] += b[i]; }"
    compiled(deepspeed / "ops/adam", code, "-O3", "-g", "-mavx2", name="cpu_adam_op.so")
    (deepspeed / "git_version_info_installed.py").write_text(built_note(["cpu_adam"]))
    old = recorded(tmp_path, files={"/proc/cpuinfo": "flags : sse2 sse4_2 cx16\n"}, packages={"deepspeed": deepspeed})
    found = found_by("cpu_level", old)
    assert codes(found) == ["cpu_level"]
    assert "avx2" in found[0].message
    flags = "sse2 cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3 abm avx avx2 bmi1 bmi2 f16c fma movbe"
    new = recorded(tmp_path, files={"/proc/cpuinfo": f"flags : {flags}\n"}, packages={"deepspeed": deepspeed})
    assert levels(found_by("cpu_level", new)) == FINE
