"""Which torch, nvcc and host compiler fit together."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsrun.machine.torch_facts import TorchFacts
from dsrun.wheel.platform.cxx import CxxCompiler
from dsrun.wheel.platform.nvcc import Nvcc
from dsrun.wheel.platform.toolchain import check_tools


def torch(version: str = "2.13.0+cu130", cuda: str | None = "13.0", hip: str | None = None) -> TorchFacts:
    return TorchFacts(version=version, cuda=cuda, hip=hip, python_tag="cp311", path=Path("/env/torch"))


@pytest.fixture
def nvcc(tmp_path):
    (tmp_path / "include/crt").mkdir(parents=True)
    (tmp_path / "include/cuda_runtime.h").write_text("")

    def of(version: str, *, gcc: int = 15, clang: int = 20) -> Nvcc:
        # The lines of CUDA 12.4's and 13.0's headers.
        (tmp_path / "include/crt/host_config.h").write_text(
            f"#if __GNUC__ > {gcc}\n#error -- unsupported GNU version!\n#endif /* __GNUC__ > {gcc} */\n"
            f"#if (__clang_major__ >= {clang + 1}) || (__clang_major__ < 3) || ((__clang_major__ == 3) &&  (…))\n"
        )
        return Nvcc(path=tmp_path / "bin/nvcc", version=version, home=tmp_path, origin="PATH")

    return of


def cxx(version: str, kind="gcc", name: str = "g++") -> CxxCompiler:
    return CxxCompiler(path=Path("/usr/bin") / name, kind=kind, version=version)


GCC = cxx("12.2.0")


def codes(findings):
    return [(finding.level, finding.code) for finding in findings]


def test_matching_toolchain_has_no_finding(nvcc):
    assert check_tools("cuda", torch(), nvcc("13.0"), GCC) == []
    assert check_tools("cpu", torch("2.13.0+cpu", None), None, GCC) == []


@pytest.mark.parametrize(("version", "cuda"), [("13.5", "13.0"), ("12.4", "12.8"), ("12.8", "12.6")])
def test_cuda_minor_difference_is_info(nvcc, version, cuda):
    (finding,) = check_tools("cuda", torch(cuda=cuda), nvcc(version), GCC)
    assert (finding.level, finding.code) == ("info", "cuda_minor_differs")
    assert version in finding.message
    assert cuda in finding.message


def test_cuda_major_difference_is_refused(nvcc):
    """The error names both ways out: another nvcc, or another torch."""
    (finding,) = check_tools("cuda", torch(), nvcc("12.4"), GCC)
    assert (finding.level, finding.code) == ("error", "cuda_major_differs")
    assert "nvcc 13.0" in finding.fix
    assert "cuda-toolkit[nvcc" in finding.fix
    assert "torch for CUDA 12.x" in finding.fix


def test_missing_nvcc(nvcc):
    (finding,) = check_tools("cuda", torch(), None, GCC)
    assert finding.code == "no_nvcc"
    assert "==13.0.*" in finding.fix
    (older,) = check_tools("cuda", torch("2.6.0", "12.4"), None, GCC)
    assert "pip install" not in older.fix, "PyPI's package of that name contains no nvcc before CUDA 13"
    assert "12.4" in older.fix


def test_missing_cpu_or_rocm_torch(nvcc):
    assert codes(check_tools("cpu", None, None, GCC)) == [("error", "no_torch")]
    (plain,) = check_tools("cuda", torch("2.13.0+cpu", None), nvcc("13.0"), GCC)
    assert "without CUDA" in plain.message
    assert "--arch cpu" in plain.fix
    (rocm,) = check_tools("cuda", torch("2.13.0+rocm6.4", None, "6.4.1"), None, GCC)
    assert "ROCm 6.4.1" in rocm.message


def test_cuda_toolkit_without_runtime(nvcc, tmp_path):
    nvcc_ = nvcc("13.0")
    (tmp_path / "include/cuda_runtime.h").unlink()
    assert codes(check_tools("cuda", torch(), nvcc_, GCC)) == [("error", "no_cuda_runtime")]


def test_host_compiler_too_new_for_nvcc(nvcc):
    others = [
        cxx("13.3.0", name="g++-13"),
        cxx("18.1.0", "clang", "clang++-18"),
        cxx("12.1.0", name="g++-12"),
    ]
    (finding,) = check_tools("cuda", torch(cuda="12.4"), nvcc("12.4", gcc=13, clang=17), cxx("15.1.0"), others)
    assert finding.code == "compiler_too_new"
    assert "up to gcc 13" in finding.message
    assert finding.fix == "--cxx /usr/bin/g++-13"
    (alone,) = check_tools("cuda", torch(cuda="12.4"), nvcc("12.4", gcc=13), cxx("15.1.0"))
    assert alone.fix == "install gcc 13 and name it with --cxx"
    assert check_tools("cpu", torch(), None, cxx("99.0.0")) == [], "nvcc's limit is none of the CPU build's"
    assert codes(check_tools("cuda", torch(), nvcc("13.0"), cxx("21.0.0", "clang"))) == [("error", "compiler_too_new")]


def test_toolkit_without_its_limits_has_none(nvcc, tmp_path):
    given = nvcc("13.0")
    (tmp_path / "include/crt/host_config.h").unlink()
    assert check_tools("cuda", torch(), given, cxx("99.0.0")) == []


def test_host_compiler_too_old_for_torch_headers():
    (finding,) = check_tools("cpu", torch(), None, cxx("10.2.1"), [cxx("9.4.0", name="g++-9"), GCC])
    assert finding.code == "compiler_too_old"
    assert "C++20" in finding.message
    assert finding.fix == "--cxx /usr/bin/g++"
    assert check_tools("cpu", torch("2.11.0"), None, cxx("10.2.1")) == []
    assert codes(check_tools("cpu", torch("2.11.0"), None, cxx("8.5.0"))) == [("error", "compiler_too_old")]
