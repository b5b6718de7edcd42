"""torch against the driver and the GPUs."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.tiny_wheels import PTX, SASS, compiled, container, entry, needs_gcc
from tests.unit.doctor.recorded import A100, FINE, V100, codes, driver, found_by, job, levels, recorded, torch_at

NVIDIA_GPU = {
    "/sys/bus/pci/devices/0000:41:00.0/vendor": "0x10de\n",
    "/sys/bus/pci/devices/0000:41:00.0/class": "0x030200\n",
}
MODULE = {"/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06\n"}


@pytest.mark.parametrize(
    ("cuda", "driver_cuda", "code", "said"),
    [
        ("13.0", "12.4", "torch_driver_old", "index cu129"),
        ("12.8", "11.8", "torch_driver_old", "index cu118"),
        ("12.8", "12.4", "torch_driver_minor", "update the driver"),
        (None, "12.4", "torch_driver_cpu_build", "index cu129"),
    ],
)
def test_torch_that_driver_does_not_suit(tmp_path: Path, cuda, driver_cuda, code, said) -> None:
    here = recorded(tmp_path, packages={"torch": torch_at(tmp_path, cuda=cuda)}, found=driver(A100, cuda=driver_cuda))
    found = found_by("torch_driver", here)
    assert codes(found) == [code]
    assert said in found[0].fix


@pytest.mark.parametrize("driver_cuda", ["13.0", "13.2", "14.1"])
def test_torch_with_newer_driver(tmp_path: Path, driver_cuda) -> None:
    here = recorded(tmp_path, packages={"torch": torch_at(tmp_path)}, found=driver(A100, A100, cuda=driver_cuda))
    found = found_by("torch_driver", here)
    assert levels(found) == FINE
    assert "2 × NVIDIA A100-SXM4-80GB" in found[0].message


@pytest.mark.parametrize("files", [NVIDIA_GPU, MODULE])
def test_driver_that_does_not_answer_is_left_to_its_own_check(tmp_path: Path, files) -> None:
    packages = {"torch": torch_at(tmp_path)}
    assert found_by("torch_driver", recorded(tmp_path / "gpu", files=files, packages=packages)) == []
    bare = found_by("torch_driver", recorded(tmp_path / "bare", packages=packages))
    assert levels(bare) == FINE
    assert "training would run on the CPU" in bare[0].message


def test_missing_and_broken_torch(tmp_path: Path) -> None:
    missing = found_by("torch_driver", recorded(tmp_path))
    assert (codes(missing), levels(missing)) == (["torch_driver_missing"], ["warning"])
    here = job(tmp_path, "--model", "m")
    assert levels(found_by("torch_driver", recorded(tmp_path), here)) == ["error"]
    assert levels(found_by("torch_driver", recorded(tmp_path), replace(here, nodes=4))) == ["warning"]
    package = torch_at(tmp_path)
    (package / "version.py").write_text("")
    assert codes(found_by("torch_driver", recorded(tmp_path, packages={"torch": package}))) == ["torch_driver_broken"]


@needs_gcc
def test_gpu_that_torch_has_no_code_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SASS of sm_75 and sm_80 serves an A100 and an L4, not a V100; the fix names a torch that does."""
    monkeypatch.setenv("DSRUN_CACHE", str(tmp_path / "cache"))
    package = torch_at(tmp_path)
    code = container(entry(SASS, 75), entry(SASS, 80), entry(PTX, 120))
    compiled(package / "lib", "int kernels;", name="libtorch_cuda.so", section=code)
    for _ in range(2):  # the second time from the cache
        old = found_by("gpu_code", recorded(tmp_path, packages={"torch": package}, found=driver(V100, A100)))
        assert codes(old) == ["gpu_code_torch"]
        assert "torch==2.10.*" in old[0].fix
    newer = ("NVIDIA RTX PRO", 96, (12, 1))
    assert codes(found_by("gpu_code", recorded(tmp_path, packages={"torch": package}, found=driver(newer)))) == [
        "gpu_code_ptx"
    ]
    fine = found_by("gpu_code", recorded(tmp_path, packages={"torch": package}, found=driver(A100, ("L4", 24, (8, 9)))))
    assert levels(fine) == FINE


@needs_gcc
def test_compiled_op_without_code_for_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSRUN_CACHE", str(tmp_path / "cache"))
    torch, deepspeed = torch_at(tmp_path), tmp_path / "deepspeed"
    compiled(deepspeed / "ops/adam", "int adam;", name="fused_adam_op.so", section=container(entry(SASS, 90)))
    packages = {"torch": torch, "deepspeed": deepspeed}
    found = found_by("gpu_code", recorded(tmp_path, packages=packages, found=driver(A100)))
    assert codes(found) == ["gpu_code_op"]
    assert "fused_adam has code for 9.0" in found[0].message
    assert (
        levels(found_by("gpu_code", recorded(tmp_path, packages=packages, found=driver(("H100", 80, (9, 0)))))) == FINE
    )


def test_code_for_gpus_does_not_apply_without_gpu(tmp_path: Path) -> None:
    assert found_by("gpu_code", recorded(tmp_path, packages={"torch": torch_at(tmp_path)})) == []
