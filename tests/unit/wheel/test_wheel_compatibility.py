"""A wheel against a machine, as pure values: which GPU runs which code, and everything else that would go wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dsrun.wheel.verify.compatibility import compare, compare_with_gpus
from dsrun.wheel.verify.contents import WheelLibrary, WheelReport
from dsrun.wheel.verify.fatbin import cuda_of_isa, service
from dsrun.wheel.verify.probed_machine import ProbedMachine, WheelGpu, gpus_for

ADAM = WheelLibrary(
    path="deepspeed/ops/adam/fused_adam_op.so",
    size=1000,
    op="fused_adam",
    sass=("8.0", "9.0"),
    ptx=(),
    needed=("libc.so.6", "libcudart.so.13", "libc10.so"),
    glibc="2.34",
    glibcxx="3.4.30",
    cpu_level="x86-64-v3",
    cxx11_abi=True,
    machine="x64",
)
HOST = replace(ADAM, path="deepspeed/ops/adam/cpu_adam_op.so", op="cpu_adam", sass=(), needed=("libaio.so.1",))
REPORT = WheelReport(
    path=Path("deepspeed.whl"),
    sha256="0" * 64,
    size=5000,
    name="deepspeed",
    version="0.19.8+cu130torch2.13.sm80.sm90",
    local="cu130torch2.13.sm80.sm90",
    python="cp311",
    abi="cp311",
    platform="linux_x86_64",
    torch="2.13",
    cuda="13.0",
    accelerator="cuda",
    installed_ops=("fused_adam", "cpu_adam"),
    libraries=(ADAM, HOST),
)
V2 = ["sse2", "cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"]
V3 = frozenset([*V2, "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"])
A100 = WheelGpu(name="NVIDIA A100-SXM4-80GB", capability=(8, 0))
NODE = ProbedMachine(
    node="gpu01",
    python="cp311",
    abi="cp311",
    python_version="3.11.7",
    machine="x86_64",
    glibc="2.36",
    glibcxx="3.4.30",
    torch="2.13.0+cu130",
    torch_cuda="13.0",
    cxx11_abi=True,
    driver="580.65",
    driver_cuda="13.0",
    gpus=(A100,),
    cpu_flags=V3,
)


def found(report=REPORT, machine=NODE):
    """(level, code) -> message of every finding."""
    every = compare(report, machine)
    return {(each.level, each.code): each.message for each in every}


def only(report=REPORT, machine=NODE):
    """Level, code and message of the only finding."""
    ((level, code), message) = next(iter(found(report, machine).items()))
    assert len(found(report, machine)) == 1
    return level, code, message


def with_libraries(*libraries: WheelLibrary) -> WheelReport:
    return replace(REPORT, libraries=libraries)


def test_matching_wheel_has_no_finding():
    assert found() == {}


# --- GPU code ---


@pytest.mark.parametrize(
    ("sass", "ptx", "gpu", "expected"),
    [
        (["8.0"], [], (8, 0), "sass"),
        (["8.0"], [], (8, 6), "sass"),  # within a major version, upwards
        (["8.6"], [], (8, 0), "none"),  # and not downwards
        (["8.0"], [], (9, 0), "none"),
        (["9.0"], [], (10, 0), "none"),
        (["9.0a"], [], (9, 0), "sass"),
        (["9.0a"], ["9.0a"], (10, 0), "none"),  # what is for one architecture has no future
        (["10.0a"], [], (10, 3), "none"),
        (["10.0f"], [], (10, 3), "sass"),
        (["10.3f"], [], (10, 0), "none"),
        (["10.0f"], [], (12, 0), "none"),
        (["12.0"], [], (12, 1), "sass"),
        ([], ["8.0"], (8, 0), "ptx"),
        (["8.0"], ["8.0"], (12, 0), "ptx"),
        ([], ["9.0"], (8, 0), "none"),
        ([], ["10.0f"], (10, 3), "ptx"),
        (["8.0", "9.0"], ["9.0"], (9, 0), "sass"),
        (["8.0"], [], (8, 7), "tegra"),
        (["8.7"], [], (8, 7), "sass"),
        (["8.7"], [], (8, 9), "tegra"),
        (["8.0"], ["8.0"], (8, 7), "ptx"),
        (["8.0", "8.7"], [], (8, 9), "sass"),
        ([], [], (8, 0), "none"),
    ],
)
def test_sass_and_ptx_service_per_gpu(sass, ptx, gpu, expected):
    assert service(sass, ptx, gpu) == expected


def test_no_sass_and_no_ptx_is_an_error():
    level, code, message = only(machine=replace(NODE, gpus=gpus_for([(12, 0)])))
    assert (level, code) == ("error", "arch_missing")
    assert message == "fused_adam: no sm_120 code, and no PTX to fall back on"


def test_local_gpu_is_named():
    machine = replace(NODE, gpus=(WheelGpu(name="Tesla V100", capability=(7, 0)),))
    assert only(machine=machine)[2].endswith("no sm_70 code, and no PTX to fall back on (Tesla V100)")


def test_one_finding_per_gpu_type():
    every = compare(REPORT, replace(NODE, gpus=(WheelGpu(name="V100", capability=(7, 0)),) * 8))
    assert [each.code for each in every] == ["arch_missing"]
    assert every[0].fix == "add 7.0 to --arch of dsrun build-wheel"
    assert every[0].where == "gpu01"


def test_ptx_fallback_is_a_warning():
    report = with_libraries(replace(ADAM, ptx=("9.0",), ptx_isa="9.0"), HOST)
    level, code, message = only(report, machine=replace(NODE, gpus=gpus_for([(12, 0)])))
    assert (level, code) == ("warning", "arch_ptx")
    assert "which the driver compiles at the first use" in message


def test_tegra_is_a_warning():
    assert only(machine=replace(NODE, gpus=gpus_for([(8, 7)])))[:2] == ("warning", "arch_tegra")


def test_gpu_op_without_gpu_code_is_an_error():
    """A GPU op without GPU code is the CPU variant that DeepSpeed builds without a word."""
    level, code, message = only(with_libraries(replace(ADAM, sass=()), HOST))
    assert (level, code, message) == ("error", "gpu_code_missing", "fused_adam: no GPU code at all")


def test_lto_only_code_is_no_gpu_code():
    message = only(with_libraries(replace(ADAM, sass=(), lto=("8.0",)), HOST))[2]
    assert message == "fused_adam: no GPU code at all (code for the just-in-time linker only)"


def test_compare_with_gpus_without_machine():
    every = compare_with_gpus(REPORT, gpus_for([(8, 0), (9, 0), (10, 0)]))
    assert [(each.code, each.where) for each in every] == [("arch_missing", "")]
    assert "sm_100" in every[0].message
    assert compare_with_gpus(REPORT, gpus_for([(8, 9)])) == []


def test_cpu_wheel_on_gpu_is_an_error():
    report = replace(REPORT, accelerator="cpu", cuda=None, libraries=(HOST,), installed_ops=("cpu_adam",))
    (each,) = compare_with_gpus(report, gpus_for([(8, 0)]))
    assert (each.level, each.code) == ("error", "accelerator")
    assert ("error", "accelerator") in found(report)


# --- the driver ---


def test_driver_of_older_cuda_major():
    level, code, message = only(machine=replace(NODE, driver="550.54", driver_cuda="12.4"))
    assert (level, code) == ("error", "driver_old")
    assert message == "needs CUDA 13.0, the driver 550.54 knows CUDA 12.4"


def test_driver_of_older_cuda_minor_runs_sass_only():
    """A driver of an older minor version runs SASS, but no newer PTX."""
    report = replace(REPORT, cuda="13.1")
    machine = replace(NODE, torch_cuda="13.1", driver_cuda="13.0")
    assert found(report, machine) == {}
    later = replace(report, libraries=(replace(ADAM, ptx=("9.0",), ptx_isa="9.1"), HOST))
    blackwell = replace(machine, gpus=(WheelGpu(name="B200", capability=(10, 0)),))
    message = found(later, blackwell)["error", "driver_ptx"]
    assert "sm_100 could only use its PTX, which needs a driver for CUDA 13.1; this one knows CUDA 13.0" in message


@pytest.mark.parametrize(
    ("isa", "cuda"),
    [("7.8", "11.8"), ("8.0", "12.0"), ("8.4", "12.4"), ("8.7", "12.8"), ("8.8", "12.9"), ("9.1", "13.1")],
)
def test_cuda_version_of_ptx_isa(isa, cuda):
    assert cuda_of_isa(isa) == cuda


# --- Python and torch ---


def test_torch_minor_mismatch_is_an_error():
    """Another minor version of torch is an error, another patch version is not."""
    assert found(machine=replace(NODE, torch="2.13.4+cu130")) == {}
    message = only(machine=replace(NODE, torch="2.12.1+cu130"))[2]
    assert message.startswith("was built with torch 2.13, here is 2.12.1+cu130: DeepSpeed refuses")


def test_torch_cuda_mismatch():
    level, code, message = only(machine=replace(NODE, torch_cuda="12.8", driver_cuda="13.0"))
    assert (level, code) == ("error", "torch_cuda")
    assert "was built for CUDA 13.0, here torch has CUDA 12.8" in message


def test_cuda_wheel_with_cpu_torch():
    machine = replace(NODE, torch="2.13.0+cpu", torch_cuda=None, absent=("libcudart.so.13",))
    assert set(found(machine=machine)) == {("error", "torch_cuda")}


def test_missing_torch_is_a_warning():
    """Without torch there is one warning, and none for the libraries torch would bring."""
    machine = replace(NODE, torch=None, torch_cuda=None, cxx11_abi=None, absent=("libcudart.so.13", "libc10.so"))
    assert set(found(machine=machine)) == {("warning", "torch_missing")}


def test_cxx11_abi_mismatch():
    message = only(machine=replace(NODE, cxx11_abi=False))[2]
    assert "compiled for the new C++ ABI, torch here has the old one" in message


def test_no_visible_gpu_is_info():
    assert only(machine=replace(NODE, gpus=(), driver=None, driver_cuda=None))[:2] == ("info", "no_gpu")


# --- the system ---


def test_glibc_and_libstdcxx_too_old():
    assert only(machine=replace(NODE, glibc="2.31"))[2] == "fused_adam, cpu_adam: needs glibc 2.34, here is 2.31"
    assert found(machine=replace(NODE, glibc="2.34")) == {}
    message = only(machine=replace(NODE, glibcxx="3.4.9"))[2]
    assert message == "fused_adam, cpu_adam: needs a libstdc++ with GLIBCXX_3.4.30, here is 3.4.9"


def test_cpu_level_too_old():
    report = with_libraries(ADAM, replace(HOST, cpu_level="x86-64-v4+avx512_bf16"))
    level, code, message = only(report)
    assert (level, code) == ("error", "cpu_level")
    assert message.startswith(
        "cpu_adam: compiled for x86-64-v4+avx512_bf16, this processor lacks avx512_bf16, avx512bw"
    )
    assert "SIGILL" in message


def test_cpu_dispatched_code_is_accepted():
    """Code that asks the processor first is no danger on an older one."""
    assert found(with_libraries(ADAM, replace(HOST, cpu_level="x86-64-v4", reads_cpu=True))) == {}


def test_unknown_cpu_level_is_info():
    assert only(with_libraries(ADAM, replace(HOST, cpu_level=None)))[:2] == ("info", "cpu_unknown")


def test_missing_libraries():
    level, code, message = only(machine=replace(NODE, absent=("libaio.so.1", "libunrelated.so.1")))
    assert (level, code) == ("error", "library_missing")
    assert message == "cpu_adam: needs libaio.so.1, which is not on this machine"
    assert compare(REPORT, replace(NODE, absent=("libaio.so.1",)))[0].fix == "install libaio1"


def test_libcuda_is_not_missing_without_driver():
    """libcuda.so.1 comes with the driver: where there is none it is not called missing."""
    report = with_libraries(ADAM, replace(HOST, needed=("libcuda.so.1",)))
    machine = replace(NODE, gpus=(), driver=None, driver_cuda=None, absent=("libcuda.so.1",))
    assert set(found(report, machine)) == {("info", "no_gpu")}


# --- the wheel itself ---


def test_op_in_installed_ops_but_missing():
    message = found(with_libraries(ADAM))["error", "op_missing"]
    assert message == "cpu_adam: promised by the wheel, but not in it"


def test_wheel_without_ops_is_a_warning():
    """Without precompiled ops each is compiled at its first use."""
    bare = replace(REPORT, libraries=(), installed_ops=(), python="py3", abi="none", platform="any")
    assert only(bare)[:2] == ("warning", "wheel_without_ops")


def test_findings_sorted_by_severity():
    machine = replace(NODE, gpus=(), driver=None, driver_cuda=None, glibc="2.31", torch=None)
    levels = [each.level for each in compare(with_libraries(ADAM, replace(HOST, cpu_level=None)), machine)]
    assert levels == sorted(levels, key=["error", "warning", "info"].index)
    assert {"error", "warning", "info"} == set(levels)
