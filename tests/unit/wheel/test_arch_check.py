"""The list against nvcc and torch, and build/cuda.toml against build/gpus.toml and a real nvcc."""

import shutil
import subprocess
from pathlib import Path

import pytest

from dsrun.hardware.gpu_facts import gpu_table
from dsrun.wheel.platform.arch import (
    generations,
    minor_release,
    nvcc_versions,
    parse_archs,
    tegra,
    torch_releases,
)
from dsrun.wheel.platform.gpu_target import check_archs, serving

NVCC = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"


def check(archs, *, nvcc="13.0.88", torch="2.13.0+cu130", cuda="13.0", **more):
    compiled = nvcc_versions()[minor_release(nvcc)] if nvcc else None
    return check_archs(parse_archs(archs), nvcc=nvcc, compiled=compiled, torch_version=torch, torch_cuda=cuda, **more)


@pytest.mark.parametrize(
    ("archs", "nvcc", "torch", "cuda"),
    [
        ("7.5;8.0;9.0", "13.0", "2.13.0+cu130", "13.0"),
        ("a100,h100,b200,b300,rtx 5090,gb10", "13.0.88", "2.13.0", "13.0"),
        ("volta", "12.8", "2.10.0+cu128", "12.8"),
        ("p100,m40", "12.6", "2.7.1", "12.6"),
        ("8.0", None, "2.13.0+cu130", "13.0"),
    ],
)
def test_supported_archs_give_no_finding(archs, nvcc, torch, cuda):
    assert check(archs, nvcc=nvcc, torch=torch, cuda=cuda) == []


@pytest.mark.parametrize(
    ("archs", "code", "words"),
    [
        (
            "v100",
            "nvcc_cannot_compile",
            ["nvcc 13.0", "7.0 (Tesla V100", "torch 2.10 with CUDA 12.8 is the last"],
        ),
        ("p100", "nvcc_cannot_compile", ["6.0", "torch 2.7 with CUDA 12.6 is the last", "nvcc 12.9"]),
        ("k80", "nvcc_cannot_compile", ["3.7 (Tesla K80)", "leave it out"]),
        ("10.7", "nvcc_cannot_compile", ["nvcc 13.4 is the first"]),
        ("jetson thor", "torch_has_no_code", ["11.0", "build on the board itself"]),
    ],
)
def test_unsupported_gpu_names_supporting_versions(archs, code, words):
    """A GPU that this nvcc or torch does not support is told which versions do."""
    (finding,) = check(archs)
    assert (finding.level, finding.code) == ("error", code)
    for word in words:
        assert word in f"{finding.message} {finding.fix}"


def test_gpu_too_new_for_torch_names_first_version():
    """A GPU too new for this torch is told the first torch that supports it."""
    (finding,) = check("b200", nvcc="12.8", torch="2.7.1+cu126", cuda="12.6")
    assert finding.code == "torch_has_no_code"
    assert "torch 2.8 with CUDA 12.8 the first" in finding.fix


def test_one_finding_per_unsupported_arch():
    codes = [(f.code, f.level) for f in check("p100,v100,t4,a100")]
    assert codes == [
        ("nvcc_cannot_compile", "error"),
        ("nvcc_cannot_compile", "error"),
    ]


@pytest.mark.parametrize(
    "torch",
    [{"torch": "2.9.0a0+nv25.9"}, {"torch": "2.13.0+gitabc"}, {"cuda": "12.6"}, {"machine": "aarch64"}],
)
def test_unknown_torch_build_is_not_checked(torch):
    """Nightly, NVIDIA and self-built torch: nobody knows which code they hold."""
    (finding,) = check("jetson thor", **torch)
    assert (finding.level, finding.code) == ("info", "torch_unknown")


def test_unsupported_arch_among_others_names_arch_list_that_works():
    first, second = check("p100,v100,a100,h100+PTX")
    assert first.fix.endswith('; for the others: --arch "8.0;9.0+PTX"')
    assert "--arch" not in second.fix
    (alone,) = check("v100")
    assert "--arch" not in alone.fix


def test_nvcc_that_lists_nothing_is_not_checked():
    given = parse_archs("v100")
    assert check_archs(given, nvcc="13.0", compiled=None, torch_version="2.10.0", torch_cuda="12.8") == []


def test_gpu_table_agrees_with_cuda_and_torch_tables():
    versions = nvcc_versions()
    newest = list(versions)[-1]
    for row in gpu_table():
        compilers = [each for each in versions if row.capability in versions[each]]
        if not compilers:  # older than the table of compilers
            assert row.last_cuda == "10.2"
            continue
        assert compilers[-1] == (row.last_cuda or newest), row.name
        first = tuple(map(int, (row.first_cuda or "0.0").split(".")))
        assert tuple(map(int, compilers[0].split("."))) >= first, row.name
        if row.segment != "jetson":
            rows = serving(row.capability)
            last = minor_release(row.pypi_torch_last) if row.pypi_torch_last else None
            assert last is None or rows[-1].release == last, row.name
            assert last or not rows or rows[-1] == torch_releases()[-1], row.name
            if row.pypi_torch_first:
                assert rows[0].release == minor_release(row.pypi_torch_first), row.name
        else:
            assert row.capability in tegra(), row.name


def test_every_generation_is_compiled_by_some_nvcc():
    known = {each for archs in nvcc_versions().values() for each in archs}
    for word, archs in generations().items():
        assert set(archs) <= known - tegra(), word


@pytest.mark.skipif(not Path(NVCC).is_file(), reason="no nvcc here")
def test_nvcc_table_matches_installed_nvcc():
    """The table lists for the installed nvcc what `nvcc --list-gpu-code` lists."""
    said = subprocess.run([NVCC, "--version"], capture_output=True, text=True, check=True).stdout
    version = said.partition("release ")[2].partition(",")[0]
    listed = subprocess.run([NVCC, "--list-gpu-code"], capture_output=True, text=True, check=True).stdout
    compiled = nvcc_versions()[version]
    assert {f"sm_{major}{minor}" for major, minor in compiled} == set(listed.split())
