"""Findings of `dsrun doctor` in Chinese: whole sentences, with what is filled in translated too."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsrun.doctor.gpu.nvml import GpuState
from dsrun.doctor.registry import CHECKS
from dsrun.doctor.software.known_bad import known_bad_rows
from dsrun.findings.translation import translated
from dsrun.messages import Message
from tests.unit.doctor.recorded import found_by, recorded, torch_at
from tests.unit.doctor.test_build_checks import gcc, toolkit


@pytest.fixture(autouse=True)
def _chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSRUN_LANG", "zh")


def test_error_counts_and_advice_inside_a_fix(tmp_path: Path) -> None:
    (found,) = found_by("ecc", recorded(tmp_path, gpus=[GpuState(index=3, name="H100", ecc_uncorrected=2)]))
    assert translated(found.message) == "GPU 3 (H100)：驱动加载以来有 2 个不可纠正的 ECC 错误"
    assert translated(found.fix).startswith("结束其上的进程并重置（sudo nvidia-smi --gpu-reset -i 3），或重启机器；")


def test_reason_in_a_table_of_toml(tmp_path: Path) -> None:
    hot = [GpuState(index=index, throttle_reasons=0x20, temperature_c=91) for index in (0, 3)]
    (found,) = found_by("gpu_clocks", recorded(tmp_path, gpus=hot))
    assert translated(found.message) == "GPU 0, 3 (91 °C, 91 °C)：温度过高，频率受限（software thermal slowdown）"


def test_advice_of_build_wheel_is_reworded_for_the_doctor(tmp_path: Path) -> None:
    home = toolkit(tmp_path / "cuda", "13.0", newest_gcc=15)
    gcc(tmp_path / "bin", 16)
    environ = {"CUDA_HOME": str(home), "PATH": str(tmp_path / "bin")}
    here = recorded(tmp_path, environ=environ, packages={"torch": torch_at(tmp_path)})
    (found,) = found_by("host_compiler", here)
    assert found.fix == "install gcc 15 and name it with the variable CXX"
    assert translated(found.fix) == "安装 gcc 15，并用环境变量 CXX 指定它"


def test_versions_are_filled_into_known_bad_rows(tmp_path: Path) -> None:
    versions = {"torch": "2.4.0", "deepspeed": "0.14.0"}
    found = {each.code: each for each in found_by("versions", recorded(tmp_path, versions=versions))}
    message = translated(found["versions_deepspeed_torch_elastic"].message)
    assert message.startswith("DeepSpeed 0.14.0 与 torch 2.4.0 一起无法导入")


def test_every_title_and_need_and_row_is_translated() -> None:
    """A title may be a name, such as NVLink, that is the same in Chinese."""
    same = {each.title for each in CHECKS if translated(each.title) == each.title}
    assert same <= {"/dev/shm", "NVLink", "GPUDirect RDMA", "DeepSpeed JSON", "Hugging Face Hub"}
    needs = [each.needs for each in CHECKS if each.needs]
    rows = [row.message for row in known_bad_rows()]
    assert [text for text in needs + rows if translated(Message(text)) == text] == []
