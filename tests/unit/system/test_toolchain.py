"""Compilers and CUDA toolkits: the real ones of this machine, and small ones that print what real ones print."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dsrun.errors import MissingError, ToolError, UsageError
from dsrun.system.packages import install_command
from dsrun.wheel.build.plan import jobs
from dsrun.wheel.toolchain import cxx as compilers
from dsrun.wheel.toolchain.cxx import all_cxx, c_compiler, compiler_cache, find_cxx, has_function, has_header
from dsrun.wheel.toolchain.nvcc import (
    all_nvcc,
    find_nvcc,
    has_runtime,
    nvcc_version,
    prepare_home,
    toolkit_home,
)
from dsrun.wheel.toolchain.torch_facts import torch_facts

GIB = 1 << 30
# nvcc's own words, of 13.0 and 12.4.
SAID = """nvcc: NVIDIA (R) Cuda compiler driver
Copyright (c) 2005-2025 NVIDIA Corporation
Built on Wed_Aug_20_01:58:59_PM_PDT_2025
Cuda compilation tools, release {version}, V{version}.88
Build cuda_{version}.r{version}/compiler.36424714_0
"""
TORCH = """from typing import Optional
__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']
__version__ = '{version}'
debug = False
cuda: Optional[str] = {cuda!r}
git_version = 'cf30153'
hip: Optional[str] = None
raise SystemExit("this file was executed")
"""


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def toolkit(home: Path, version: str, headers=("cuda_runtime.h",)) -> Path:
    """A CUDA toolkit whose nvcc answers --version, and --dryrun as nvcc does: with its own place on stderr."""
    said = SAID.format(version=version)
    program(
        home / "bin/nvcc",
        f'case $1 in --version) cat <<END\n{said}END\n;; --dryrun) echo "#$ TOP={home}/bin/.." >&2 ;; esac',
    )
    (home / "include").mkdir(exist_ok=True)
    for header in headers:
        (home / "include" / header).write_text(f"// {home}\n")
    return home


def path_of(*folders: Path) -> dict[str, str]:
    return {"PATH": ":".join([*map(str, folders), "/usr/bin", "/bin"])}


# --- nvcc ---------------------------------------------------------------------------------------------------------


def test_cuda_home_selects_nvcc(tmp_path):
    one, other = toolkit(tmp_path / "one", "12.4"), toolkit(tmp_path / "other", "13.0")
    found = find_nvcc({**path_of(other / "bin"), "CUDA_HOME": str(one)}, cuda="13.0", root=tmp_path)
    assert (found.version, found.home, found.origin, found.major) == ("12.4", one, "CUDA_HOME", 12)
    assert find_nvcc({**path_of(other / "bin"), "CUDA_PATH": str(one)}, root=tmp_path).version == "12.4"


def test_cuda_home_without_nvcc_rejected(tmp_path):
    (tmp_path / "bin").mkdir()
    with pytest.raises(UsageError, match=r"CUDA_HOME is .* is not there"):
        find_nvcc({"CUDA_HOME": str(tmp_path)})
    program(tmp_path / "bin/nvcc", "exit 3")
    with pytest.raises(UsageError, match="does not answer"):
        find_nvcc({"CUDA_HOME": str(tmp_path)})


def test_nvcc_that_fits_torch_wins(tmp_path):
    on_path = toolkit(tmp_path / "module", "12.4")
    system = toolkit(tmp_path / "usr/local/cuda", "13.1")
    packages = tmp_path / "site-packages"
    toolkit(packages / "nvidia/cu13", "13.0")
    environ = path_of(on_path / "bin")

    def version(cuda):
        return find_nvcc(environ, packages, cuda=cuda, root=tmp_path).version

    assert [version(cuda) for cuda in (None, "12.4", "12.8", "13.0", "13.1", "13.2")] == [
        "12.4", "12.4", "12.4", "13.0", "13.1", "13.1",
    ]  # fmt: skip
    found = all_nvcc(environ, packages, root=tmp_path)
    assert [nvcc.origin for nvcc in found] == ["PATH", "system", "site-packages"]
    assert found[1].home == system


def test_no_nvcc_found(tmp_path):
    assert find_nvcc({"PATH": str(tmp_path)}, tmp_path, root=tmp_path) is None


def test_cuda_toolkit_behind_symlink_counts_once(tmp_path):
    home = toolkit(tmp_path / "usr/local/cuda-13.0", "13.0")
    (tmp_path / "usr/local/cuda").symlink_to(home)
    assert len(all_nvcc(path_of(home / "bin"), root=tmp_path)) == 1


def test_nvcc_script_traced_to_its_cuda_toolkit(tmp_path):
    """/usr/local/bin/nvcc as a script: the folder above bin/ is /usr/local, which has no headers."""
    home = toolkit(tmp_path / "opt/toolkit", "12.8")
    script = program(tmp_path / "local/bin/nvcc", f'exec "{home}/bin/nvcc" "$@"')
    assert toolkit_home(script) == home
    linked = tmp_path / "links/bin/nvcc"
    linked.parent.mkdir(parents=True)
    linked.symlink_to(home / "bin/nvcc")
    assert toolkit_home(linked) == home


def test_nvcc_version_of_other_program(tmp_path):
    assert nvcc_version(program(tmp_path / "a", "echo hello")) is None
    assert nvcc_version(tmp_path / "not-there") is None
    broken = program(tmp_path / "b", "")
    broken.write_text("#!/no/such/interpreter\n")
    assert nvcc_version(broken) is None


def test_cuda_headers_under_targets_in_conda(tmp_path):
    home = toolkit(tmp_path, "12.8", headers=())
    assert not has_runtime(home)
    (home / "targets/x86_64-linux/include").mkdir(parents=True)
    (home / "targets/x86_64-linux/include/cuda_runtime.h").write_text("")
    assert has_runtime(home)


def packages_with_cuda(site_packages: Path) -> Path:
    home = toolkit(site_packages / "nvidia/cu13", "13.0", headers=("cuda_runtime.h", "cublas_v2.h"))
    (home / "nvvm").mkdir()
    (home / "lib").mkdir()
    for name in ("libcudart.so.13", "libcublas.so.13", "libnvrtc-builtins.so.13.0", "libcudart_static.a"):
        (home / "lib" / name).write_text("")
    (site_packages / "nvidia/nccl/include").mkdir(parents=True)
    (site_packages / "nvidia/nccl/include/nccl.h").write_text("")
    return home


def test_cuda_home_from_pip_packages(tmp_path):
    """DeepSpeed wants lib64/libX.so; the packages have lib/libX.so.N and are not to be written into."""
    home = packages_with_cuda(tmp_path / "site-packages")
    nvcc = find_nvcc({"PATH": "/usr/bin:/bin"}, tmp_path / "site-packages", root=tmp_path)
    before = sorted(tmp_path.glob("site-packages/**/*"))
    ours = prepare_home(nvcc, tmp_path / "site-packages", tmp_path / "ours", find_cxx(os.environ))
    assert ours == tmp_path / "ours"
    assert (ours / "lib64/libcudart.so").resolve() == home / "lib/libcudart.so.13"
    assert (ours / "lib64/libnvrtc-builtins.so").resolve() == home / "lib/libnvrtc-builtins.so.13.0"
    assert (ours / "lib64/libcudart_static.a").exists()
    assert (ours / "lib/libcublas.so").exists()
    assert (ours / "include/nccl.h").exists()
    assert (ours / "nvvm").is_dir()
    assert nvcc_version(ours / "bin/nvcc") == "13.0"
    assert sorted(tmp_path.glob("site-packages/**/*")) == before


def test_link_with_libcuda_without_driver(tmp_path):
    """A program links with the driver on a machine without one."""
    packages_with_cuda(tmp_path / "site-packages")
    cxx = find_cxx(os.environ)
    nvcc = find_nvcc({"PATH": "/usr/bin:/bin"}, tmp_path / "site-packages", root=tmp_path)
    ours = prepare_home(nvcc, tmp_path / "site-packages", tmp_path / "ours", cxx)
    source = tmp_path / "x.cpp"
    source.write_text("int x() { return 1; }\n")
    argv = [
        cxx.path,
        "-shared",
        "-fPIC",
        "-Wl,--as-needed",
        source,
        f"-L{ours}/lib64",
        "-lcuda",
        "-o",
        tmp_path / "x.so",
    ]
    assert subprocess.run(argv, check=False).returncode == 0
    loaded = subprocess.run(
        [sys.executable, "-c", f"import ctypes; ctypes.CDLL('{tmp_path}/x.so')"], check=False
    )
    assert loaded.returncode == 0


def test_small_cuda_toolkit_completed_from_pip_packages(tmp_path):
    """nvcc and runtime alone: torch's headers then stop at cusparse.h. The toolkit's own files win."""
    small = toolkit(tmp_path / "small", "13.0")
    packages_with_cuda(tmp_path / "site-packages")
    nvcc = find_nvcc({"CUDA_HOME": str(small)})
    ours = prepare_home(nvcc, tmp_path / "site-packages", tmp_path / "ours", find_cxx(os.environ))
    assert (ours / "include/cuda_runtime.h").resolve() == small / "include/cuda_runtime.h"
    assert (ours / "include/cublas_v2.h").exists()
    assert (ours / "bin/nvcc").resolve() == small / "bin/nvcc"


def test_cuda_12_pip_packages_have_a_folder_each(tmp_path):
    small = toolkit(tmp_path / "small", "12.8")
    packages_with_cuda(tmp_path / "site-packages")
    for name in ("cublas", "cusparse"):
        (tmp_path / f"site-packages/nvidia/{name}/include").mkdir(parents=True)
        (tmp_path / f"site-packages/nvidia/{name}/include/{name}.h").write_text("")
    nvcc = find_nvcc({"CUDA_HOME": str(small)})
    ours = prepare_home(nvcc, tmp_path / "site-packages", tmp_path / "ours", find_cxx(os.environ))
    assert {path.name for path in (ours / "include").iterdir()} >= {"cublas.h", "cusparse.h", "nccl.h"}
    assert not (ours / "include/cublas_v2.h").exists(), "CUDA 13's header in a CUDA 12 toolkit"


def test_complete_cuda_toolkit_used_as_it_is(tmp_path):
    headers = ("cuda_runtime.h", "cublas_v2.h", "cusparse.h", "cusolverDn.h")
    whole = toolkit(tmp_path / "whole", "13.0", headers=headers)
    (whole / "lib64").mkdir()
    cxx = find_cxx(os.environ)
    driver = tmp_path / "driver.cpp"
    driver.write_text('extern "C" void cuInit() {}\n')
    subprocess.run([cxx.path, "-shared", "-fPIC", "-o", whole / "lib64/libcuda.so", driver], check=True)
    assert prepare_home(find_nvcc({"CUDA_HOME": str(whole)}), None, tmp_path / "ours", cxx) == whole
    assert not (tmp_path / "ours").exists()


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on this machine")
def test_real_nvcc_compiles_from_prepared_cuda_home(tmp_path):
    nvcc = find_nvcc({"PATH": os.environ["PATH"]})
    assert has_runtime(nvcc.home)
    ours = prepare_home(nvcc, None, tmp_path / "ours", find_cxx(os.environ))
    (tmp_path / "k.cu").write_text("__global__ void k(float* x) { x[threadIdx.x] += 1; }\n")
    argv = [ours / "bin/nvcc", "-arch=sm_80", "-c", tmp_path / "k.cu", "-o", tmp_path / "k.o"]
    assert subprocess.run(argv, env={"PATH": "/usr/bin:/bin"}, check=False).returncode == 0


# --- host compilers -------------------------------------------------------------------------------------------------


def test_cxx_of_this_host():
    cxx = find_cxx(os.environ)
    said = subprocess.run(
        [cxx.path, "-dumpfullversion", "-dumpversion"], capture_output=True, text=True, check=True
    )
    assert cxx.version == said.stdout.strip()
    assert cxx in all_cxx(os.environ)
    plain = c_compiler(cxx)
    assert plain is not None
    assert compilers.predefined(plain)


def pretend(path: Path, macros: str) -> Path:
    return program(path, f"cat <<END\n{macros}\nEND")


def gcc(path: Path, major: int) -> Path:
    numbers = f"#define __GNUC__ {major}\n#define __GNUC_MINOR__ 2\n#define __GNUC_PATCHLEVEL__ 1"
    return pretend(path, f"{numbers}\n#define __cplusplus 201703L")


def test_cxx_kind_from_macros_not_name(tmp_path):
    """Its name does not decide what a compiler is."""
    macros = "#define __GNUC__ 4\n#define __cplusplus 201703L\n#define __clang_major__ 19\n#define __clang_minor__ 1"
    pretend(tmp_path / "g++", macros)
    found = find_cxx({"PATH": f"{tmp_path}:/usr/bin:/bin", "CXX": "g++"})
    assert (found.kind, found.version, found.major) == ("clang", "19.1.0", 19)


def test_cxx_precedence_flag_variable_path(tmp_path):
    gcc(tmp_path / "one/g++-14", 14)
    gcc(tmp_path / "one/c++", 11)
    gcc(tmp_path / "other", 13)
    environ = path_of(tmp_path / "one")
    assert find_cxx(environ).major == 11
    assert find_cxx({**environ, "CXX": "ccache g++-14"}).major == 14
    assert find_cxx({**environ, "CXX": "g++-14"}, str(tmp_path / "other")).major == 13
    assert {cxx.major for cxx in all_cxx(environ)} >= {11, 14}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("g++-99", "is not there"),
        ("/usr/bin/env", "not a C"),
        ("g++ -O2", "not one program.*without flags"),
        ("g++'", "is not there"),
        ("n" * 5000, "is not there"),
    ],
)
def test_named_cxx_must_be_a_compiler(name, words):
    with pytest.raises(UsageError, match=words):
        find_cxx(os.environ, name)


def test_no_cxx_found(tmp_path):
    with pytest.raises(MissingError, match="no C") as raised:
        find_cxx({"PATH": str(tmp_path)})
    assert "g++" in raised.value.fix


def test_header_and_function_checks_compile(tmp_path):
    """Whether a header or function is there is compiled, not guessed."""
    cxx = find_cxx(os.environ)
    assert has_header(cxx, "vector")
    assert not has_header(cxx, "no/such/header.h")
    (tmp_path / "mine.h").write_text("\n")
    assert not has_header(cxx, "mine.h")
    assert has_header(cxx, "mine.h", include=[tmp_path])
    assert has_function(cxx, "cos", "m")
    assert not has_function(cxx, "no_such_function_anywhere", "m")
    assert not has_function(cxx, "cos", "no_such_library")


def test_compiler_cache(tmp_path):
    environ = path_of(tmp_path)
    here = compiler_cache({"PATH": str(tmp_path)})
    assert here is None
    program(tmp_path / "sccache", "")
    assert compiler_cache({"PATH": str(tmp_path)}) == tmp_path / "sccache"
    program(tmp_path / "ccache", "")
    assert compiler_cache(environ) == tmp_path / "ccache"
    assert compiler_cache({**environ, "CCACHE_DISABLE": "1"}) is None


@pytest.mark.parametrize(
    ("cores", "memory", "cuda", "expected"),
    [
        (16, 64, True, 16),
        (64, 64, True, 16),
        (8, 6, True, 1),
        (8, 1, True, 1),
        (8, 6, False, 4),
        (2, 64, False, 2),
    ],
)
def test_parallel_compile_jobs(cores, memory, cuda, expected):
    assert jobs(cores, memory * GIB, cuda) == expected


def test_install_command_can_be_pasted():
    assert install_command("pip", "cuda-toolkit[nvcc]==13.0.*") == "pip install 'cuda-toolkit[nvcc]==13.0.*'"
    assert install_command("apt", "a b").removeprefix("sudo ") == "apt-get install a b"


# --- torch ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def environment(tmp_path):
    """A Python environment with a torch that must not be imported."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    python = tmp_path / "env/bin/python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    purelib = Path(
        subprocess.run([python, "-c", where], capture_output=True, text=True, check=True).stdout.strip()
    )

    def install(text: str, library: bytes | None = None) -> Path:
        (purelib / "torch/lib").mkdir(parents=True, exist_ok=True)
        (purelib / "torch/__init__.py").write_text("raise SystemExit('torch was imported')\n")
        (purelib / "torch/version.py").write_text(text)
        if library is not None:
            (purelib / "torch/lib/libc10.so").write_bytes(library)
        return purelib

    return str(python), install


def test_torch_facts_of_other_environment(environment):
    python, install = environment
    assert torch_facts(python) is None
    purelib = install(TORCH.format(version="2.6.0+cu124", cuda="12.4"), b"_ZN3c105ErrorC2ESs")
    facts = torch_facts(python)
    assert (facts.version, facts.cuda, facts.hip, facts.release) == ("2.6.0+cu124", "12.4", None, (2, 6))
    assert (facts.cxx11_abi, facts.path, facts.site_packages) == (False, purelib / "torch", purelib)
    assert facts.python_tag == f"cp{sys.version_info.major}{sys.version_info.minor}"
    install(TORCH.format(version="2.13.0", cuda=None), b"_ZN3c105ErrorC2ENSt7__cxx1112basic_stringIcE")
    assert (torch_facts(python).cuda, torch_facts(python).cxx11_abi) == (None, True)


def test_torch_facts_of_unreadable_torch(environment):
    python, install = environment
    install("__version__ = broken(")
    with pytest.raises(ToolError, match="does not say its version"):
        torch_facts(python)


def test_torch_facts_of_missing_interpreter(tmp_path):
    with pytest.raises(MissingError):
        torch_facts(str(tmp_path / "python"))
    with pytest.raises(ToolError, match="did not answer: out of order"):
        torch_facts(str(program(tmp_path / "broken", "echo 'out of order' >&2; exit 1")))


def test_torch_facts_agree_with_torch():
    values = "torch.__version__, torch.version.cuda, torch.compiled_with_cxx11_abi(), torch.__path__[0]"
    code = f"import torch; print({values})"
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    facts = torch_facts()
    assert [facts.version, str(facts.cuda), str(facts.cxx11_abi), str(facts.path)] == said
