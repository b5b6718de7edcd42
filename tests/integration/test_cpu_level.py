"""The compiler wrapper under DeepSpeed's real sources and torch's real build."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dsrun.wheel.compile.wrappers import compiler_environment
from dsrun.wheel.platform.cxx import find_cxx, has_function
from dsrun.wheel.platform.ops import choose_ops, links

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="compiles for x86-64"),
    pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump"),
]
# DeepSpeed's own flags and include folders for cpu_adam, as its builder gives them on this machine.
_ASK = """
from deepspeed.ops.op_builder.cpu import CPUAdamBuilder
from torch.utils.cpp_extension import include_paths
import deepspeed, sysconfig
builder = CPUAdamBuilder()
root = deepspeed.__path__[0] + "/ops/"
folders = [root + path for path in builder.include_paths()] + include_paths() + [sysconfig.get_path("include")]
print("answer:", *builder.strip_empty_entries(builder.cxx_args()), "-std=c++20", *("-I" + folder for folder in folders))
print("source:", root + "csrc/adam/cpu_adam_impl.cpp")
"""
# Two libraries that call libaio; only the one with async_io's name gets it. As DeepSpeed's CPU builder does, neither
# names it.
_SETUP = """
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension
names = ["async_io_op", "cpu_adam_op"]
setup(
    name="links",
    version="1",
    ext_modules=[CppExtension(name=f"links.{name}", sources=[f"{name}.cpp"]) for name in names],
    cmdclass={"build_ext": BuildExtension.with_options(use_ninja=NINJA)},
)
"""


@pytest.fixture(scope="module")
def question():
    environ = {**os.environ, "DS_ACCELERATOR": "cpu"}
    done = subprocess.run([sys.executable, "-c", _ASK], env=environ, capture_output=True, text=True, check=True)
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines() if line.startswith(("answer", "source")))
    return lines["answer"].split(), Path(lines["source"])


def test_cpu_adam_for_x86_64_v3_contains_no_avx512(tmp_path, question):
    flags, source = question
    assert "-march=native" in flags
    environment = compiler_environment(tmp_path / "ours", find_cxx(os.environ), "x86-64-v3", debug=False)
    result = tmp_path / "cpu_adam_impl.o"
    argv = [environment["CXX"], *flags, "-fPIC", "-O1", "-c", source, "-o", result]
    subprocess.run(argv, check=True, capture_output=True)
    code = subprocess.run(["objdump", "-d", result], capture_output=True, text=True, check=True).stdout
    assert "%ymm" in code
    assert not re.search(r"%zmm|%k[1-7]\b|%[xy]mm(1[6-9]|2\d|3[01])", code)


@pytest.mark.parametrize("ninja", [True, False])
def test_only_async_io_is_linked_with_libaio(tmp_path, ninja):
    cxx = find_cxx(os.environ)
    if not has_function(cxx, "io_submit", "aio"):
        pytest.skip("libaio is not installed")
    (tmp_path / "setup.py").write_text(_SETUP.replace("NINJA", str(ninja)))
    for name in ("async_io_op", "cpu_adam_op"):
        (tmp_path / f"{name}.cpp").write_text('extern "C" int io_submit(); int call() { return io_submit(); }\n')
    ops, _ = choose_ops("async_io,cpu_adam", "cpu", available=lambda _need: True)
    compilers = compiler_environment(tmp_path / "ours", cxx, "x86-64-v3", links=links(ops))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", "out"],
        cwd=tmp_path,
        env={**os.environ, **compilers, "PATH": path, "MAX_JOBS": "1"},
        check=True,
        capture_output=True,
    )
    needed = {}
    for name in ("async_io_op", "cpu_adam_op"):
        (library,) = (tmp_path / "out").rglob(f"{name}*.so")
        said = subprocess.run(["objdump", "-p", library], capture_output=True, text=True, check=True).stdout
        needed[name] = re.findall(r"NEEDED\s+(\S+)", said)
    assert "libaio.so.1" in needed["async_io_op"]
    assert "libaio.so.1" not in needed["cpu_adam_op"]
