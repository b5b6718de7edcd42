"""CUDA toolkits: the real one of this machine, and small ones that print what real ones print."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dsrun.errors import UsageError
from dsrun.wheel.platform.cxx import find_cxx
from dsrun.wheel.platform.nvcc import (
    all_nvcc,
    find_nvcc,
    has_runtime,
    nvcc_version,
    prepare_home,
    toolkit_home,
)
from tests.fake_programs import path_of, program

# nvcc's own words, of 13.0 and 12.4.
SAID = """nvcc: NVIDIA (R) Cuda compiler driver
Copyright (c) 2005-2025 NVIDIA Corporation
Built on Wed_Aug_20_01:58:59_PM_PDT_2025
Cuda compilation tools, release {version}, V{version}.88
Build cuda_{version}.r{version}/compiler.36424714_0
"""


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
    loaded = subprocess.run([sys.executable, "-c", f"import ctypes; ctypes.CDLL('{tmp_path}/x.so')"], check=False)
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
