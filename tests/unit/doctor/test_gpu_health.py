"""Memory errors, clocks, PCIe links and settings of GPUs."""

import pytest

from dsrun.doctor.gpu.nvml import GpuState
from dsrun.doctor.machine_facts import DoctorTarget
from tests.unit.doctor.recorded import found_by, levels_by_code, recorded

HEALTHY = {
    "name": "NVIDIA H100 80GB HBM3", "bus": "0000:3b:00.0", "persistence": True, "mig": False, "compute_mode": 0,
    "performance_state": 0, "throttle_reasons": 0x4, "temperature_c": 60, "power_limit_w": 700,
    "power_limit_default_w": 700, "ecc_uncorrected": 0, "remap_pending": False, "remap_failed": False,
    "pcie_generation": 5, "pcie_generation_max": 5, "pcie_width": 16, "pcie_width_max": 16,
}  # fmt: skip
CHECKS = ("ecc", "gpu_clocks", "pcie", "gpu_settings")


def machine(root, **changes):
    """A healthy GPU beside one that differs."""
    return recorded(root, gpus=[GpuState(index=0, **HEALTHY), GpuState(index=3, **HEALTHY | changes)])


@pytest.mark.parametrize("check", CHECKS)
def test_healthy_gpu_passes(tmp_path, check):
    assert levels_by_code(check, machine(tmp_path)) == {check: "info"}


@pytest.mark.parametrize("check", CHECKS)
def test_no_gpu_is_skipped(tmp_path, check):
    assert levels_by_code(check, recorded(tmp_path)) == {}


@pytest.mark.parametrize(
    ("changes", "code", "level"),
    [
        ({"ecc_uncorrected": 2}, "ecc_uncorrected", "error"),
        ({"remap_failed": True}, "ecc_remap_failed", "error"),
        ({"remap_pending": True}, "ecc_remap_pending", "warning"),
        ({"remap_pending": None, "retirement_pending": True}, "ecc_remap_pending", "warning"),
        ({"throttle_reasons": 0x8}, "gpu_clocks_hw_slowdown", "warning"),
        ({"throttle_reasons": 0x20 | 0x1}, "gpu_clocks_sw_thermal", "warning"),
        ({"throttle_reasons": 0x40}, "gpu_clocks_hw_thermal", "warning"),
        ({"throttle_reasons": 0x80}, "gpu_clocks_hw_power_brake", "warning"),
        ({"power_limit_w": 350}, "gpu_clocks_power_limit", "warning"),
        ({"pcie_width": 8}, "pcie_width", "warning"),
        ({"pcie_generation": 1}, "pcie_generation", "warning"),
        ({"persistence": False}, "gpu_settings_persistence", "warning"),
        ({"mig": True}, "gpu_settings_mig", "warning"),
        ({"compute_mode": 2}, "gpu_settings_prohibited", "error"),
    ],
)
def test_ailing_gpu(tmp_path, changes, code, level):
    """The finding names the GPU, and what mends it."""
    check = next(each for each in CHECKS if code.startswith(each))
    finding = found_by(check, machine(tmp_path, **changes))[0]
    assert (finding.code, finding.level) == (code, level)
    assert "3" in finding.message
    assert finding.fix


def test_several_reasons_for_low_clocks(tmp_path):
    reasons = levels_by_code("gpu_clocks", machine(tmp_path, throttle_reasons=0x48, temperature_c=91))
    assert set(reasons) == {"gpu_clocks_hw_slowdown", "gpu_clocks_hw_thermal"}
    assert "91 °C" in found_by("gpu_clocks", machine(tmp_path, throttle_reasons=0x48, temperature_c=91))[0].message


def test_idle_gpu_lets_its_link_run_slowly(tmp_path):
    idle = machine(tmp_path, pcie_generation=1, performance_state=8, throttle_reasons=0x1)
    assert levels_by_code("pcie", idle) == {"pcie": "info"}
    assert levels_by_code("gpu_clocks", idle) == {"gpu_clocks": "info"}


def test_exclusive_compute_mode(tmp_path):
    """It hurts only where ranks share a GPU."""
    exclusive = machine(tmp_path, compute_mode=3)
    assert levels_by_code("gpu_settings", exclusive) == {"gpu_settings": "info"}
    assert levels_by_code("gpu_settings", exclusive, DoctorTarget(nproc=2)) == {"gpu_settings": "info"}
    assert levels_by_code("gpu_settings", exclusive, DoctorTarget(nproc=4)) == {"gpu_settings_exclusive": "error"}


def test_one_gpu_in_mig_mode_is_no_fault(tmp_path):
    alone = recorded(tmp_path, gpus=[GpuState(index=0, **HEALTHY | {"mig": True})])
    assert levels_by_code("gpu_settings", alone) == {"gpu_settings_mig": "info"}
