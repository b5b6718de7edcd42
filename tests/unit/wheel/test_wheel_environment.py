"""What a build sees of the environment it is started in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dsrun.wheel.compile.build_environment import (
    build_environment,
    difference,
    search_paths,
    unused_flags,
    without_flags,
)
from dsrun.wheel.platform.ops import op_table
from tests.unit.wheel.test_wheel_request import CPU, CUDA

TABLE = op_table("0.19.8")
PYTHON = Path("/env/bin/python")
TREES = Path("/b/trees")


def made(request=CPU, environ=None, names=("cpu_adam",), cuda_home=None):
    ops = [op for op in TABLE if op.name in names and request.accelerator in op.accelerators]
    return build_environment(
        {"PATH": "/usr/bin", "HOME": "/home/me"} if environ is None else environ,
        request,
        python=PYTHON,
        compilers={"CXX": "/b/bin/g++", "CC": "/b/bin/gcc"},
        cuda_home=cuda_home,
        ops=ops,
        jobs=3,
        trees=TREES,
    )


def test_ds_build_variables_enable_only_requested_ops():
    """Every op has its DS_BUILD_* variable set: 1 for those asked for, 0 for all others."""
    env = made(names=("cpu_adam", "async_io"))
    switches = {name: value for name, value in env.items() if name in {op.variable for op in TABLE}}
    assert set(switches) == {op.variable for op in TABLE}
    assert {name for name, value in switches.items() if value == "1"} == {"DS_BUILD_CPU_ADAM", "DS_BUILD_AIO"}
    assert set(switches.values()) == {"0", "1"}
    assert env["DS_BUILD_OPS"] == "0"


def test_another_package_has_its_own_variables_and_none_of_the_user_s():
    request = replace(CUDA, package="flash-attn", version="2.8.3", ops=("flash_attn_2_cuda",))
    foreign = {"FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE", "FLASH_ATTN_CUDA_ARCHS": "80", "NVCC_THREADS": "4"}
    env = made(request, {"PATH": "/usr/bin", **foreign}, cuda_home=Path("/b/cuda"))
    assert env["FLASH_ATTENTION_FORCE_BUILD"] == "TRUE"
    assert not set(foreign) & set(env)
    assert not [name for name in env if name.startswith("DS_")]
    assert (env["TORCH_CUDA_ARCH_LIST"], env["MAX_JOBS"], env["CUDA_HOME"]) == (CUDA.archs, "3", "/b/cuda")


def test_build_environment_leaves_nothing_to_guess():
    env = made()
    assert env["DS_ACCELERATOR"] == "cpu"
    assert env["DS_BUILD_STRING"] == "+dsrun"
    assert (env["DS_ENABLE_NINJA"], env["MAX_JOBS"]) == ("1", "3")
    assert (env["CXX"], env["CC"]) == ("/b/bin/g++", "/b/bin/gcc")
    assert env["PATH"] == "/env/bin:/usr/bin"
    assert env["HOME"] == "/home/me"
    assert env["SOURCE_DATE_EPOCH"] == "315532800"
    assert "CFLAGS" not in env
    assert "CUDA_HOME" not in env
    assert "TORCH_CUDA_ARCH_LIST" not in env


def test_cuda_build_environment():
    env = made(CUDA, names=("fused_adam",), cuda_home=Path("/cuda"))
    assert (env["CUDA_HOME"], env["TORCH_CUDA_ARCH_LIST"]) == ("/cuda", "8.0;9.0")
    assert env["DS_ACCELERATOR"] == "cuda"
    assert env["DS_NVCC_THREADS"] == "1"


def test_foreign_build_variables_are_dropped():
    """CFLAGS, MAX_JOBS, CUDA_HOME and the like of the caller do not reach the build."""
    meddling = {
        "CFLAGS": "-march=nocona",
        "CXXFLAGS": "-O0",
        "LDFLAGS": "-L/wrong",
        "NVCC_APPEND_FLAGS": "-G",
        "DS_BUILD_FUSED_ADAM": "1",
        "DS_SKIP_CUDA_CHECK": "1",
        "TORCH_CUDA_ARCH_LIST": "native",
        "CUDA_HOME": "/wrong",
        "MAX_JOBS": "64",
        "LDSHARED": "wrong",
    }
    assert made(environ={"PATH": "/usr/bin", "HOME": "/home/me", **meddling}) == made()


def test_ccache_only_through_our_wrapper():
    """torch must not wrap the compiler again, and ccache must know a file in another folder."""
    env = made()
    assert env["TORCH_NO_COMPILER_WRAPPER"] == "1"
    assert (env["CCACHE_BASEDIR"], env["CCACHE_COMPILERCHECK"]) == ("/b/trees", "content")


def test_search_paths_pass_through_and_enter_cache_key():
    environ = {"PATH": "/usr/bin", "CPATH": "/opt/include", "LIBRARY_PATH": "", "CCL_ROOT": "/ccl"}
    assert made(environ=environ)["CPATH"] == "/opt/include"
    assert search_paths(environ) == (("CPATH", "/opt/include"), ("CCL_ROOT", "/ccl"))


def test_symbols_are_kept_on_request():
    assert made()["LDFLAGS"] == "-Wl,-s"
    assert "LDFLAGS" not in made(replace(CPU, symbols=True))


def test_unused_compiler_flags_are_reported():
    environ = {"CFLAGS": "-O1", "LDFLAGS": " ", "PATH": "/bin"}
    assert unused_flags(environ) == ["CFLAGS"]
    assert without_flags(environ) == {"PATH": "/bin"}


def test_environment_difference():
    assert difference({"A": "1", "B": "2", "C": "3"}, {"A": "1", "B": "9", "D": "4"}) == {
        "B": "9",
        "D": "4",
        "C": None,
    }
