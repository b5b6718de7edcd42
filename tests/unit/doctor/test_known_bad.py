"""Versions that are known to be bad, and vulnerabilities."""

from pathlib import Path

import pytest

from dsrun.doctor.software.known_bad import known_bad_rows, required
from tests.unit.doctor.recorded import A100, FINE, codes, driver, found_by, job, levels, recorded

ROOT = Path(__file__).parents[3]
GOOD = {
    "torch": "2.13.0+cu130", "deepspeed": "0.19.8", "transformers": "5.23.0", "accelerate": "1.15.0",
    "datasets": "5.2.0", "peft": "0.18.1", "numpy": "2.3.1",
}  # fmt: skip
ZERO2 = ("--model", "m", "--zero", "2")
ZERO3 = ("--model", "m", "--zero", "3")


@pytest.mark.parametrize(
    ("versions", "argv", "expected"),
    [
        ({}, ZERO2, []),
        ({"deepspeed": "0.17.6"}, ZERO2, ["versions_zero2_gradients"]),
        ({"deepspeed": "0.18.2"}, None, ["versions_zero2_gradients"]),
        ({"deepspeed": "0.18.2"}, ZERO3, []),
        ({"deepspeed": "0.17.5"}, ZERO2, []),
        ({"deepspeed": "0.18.3"}, ZERO2, ["versions_zero2_reused_module"]),
        ({"deepspeed": "0.19.6"}, ZERO3, ["versions_zero3_muon"]),
        ({"deepspeed": "0.19.6"}, ZERO2, []),
        ({"deepspeed": "0.19.6", "nvidia-nccl-cu13": "2.29.3"}, ZERO2, ["versions_nvcc_cpp17"]),
        ({"deepspeed": "0.19.6", "nvidia-nccl-cu13": "2.29.3", "torch": "2.11.0"}, ZERO2, []),
        ({"deepspeed": "0.19.7", "nvidia-nccl-cu13": "2.29.3"}, ZERO3, []),
        ({"deepspeed": "0.14.0", "torch": "2.10.0"}, None, ["versions_deepspeed_torch_elastic"]),
        ({"torch": "2.5.1+cu124"}, None, ["versions_cve_2025_32434"]),
        ({"torch": "2.9.1"}, None, ["versions_cve_2026_24747"]),
        ({"torch": "2.2.2"}, None, ["versions_torch_numpy2", "versions_cve_2025_32434"]),
        ({"torch": "2.10.0"}, None, []),
        ({"torch": "nightly"}, None, []),
    ],
)
def test_known_bad_versions(tmp_path: Path, versions, argv, expected) -> None:
    found = found_by("versions", recorded(tmp_path, versions=GOOD | versions), job(tmp_path, *argv) if argv else None)
    assert [code for code in codes(found) if code != "versions_range"] == expected


@pytest.mark.parametrize(("argv", "level"), [(None, "warning"), (ZERO2, "error")])
def test_missing_training_packages(tmp_path: Path, argv, level) -> None:
    versions = {name: version for name, version in GOOD.items() if name not in ("peft", "datasets")}
    found = found_by("versions", recorded(tmp_path, versions=versions), job(tmp_path, *argv) if argv else None)
    (missing,) = [each for each in found if each.code == "versions_missing"]
    assert (missing.level, missing.message) == (level, "datasets, peft are not installed, and training needs them")


def test_known_bad_is_an_error_for_a_job_that_it_hits(tmp_path: Path) -> None:
    """Without a job, nobody knows whether ZeRO-2 will be used."""
    here = recorded(tmp_path, versions=GOOD | {"deepspeed": "0.18.2"})
    assert "error" not in levels(found_by("versions", here))
    assert "error" in levels(found_by("versions", here, job(tmp_path, *ZERO2)))


def test_known_bad_by_gpus_and_variable(tmp_path: Path) -> None:
    versions = GOOD | {"torch": "2.7.0"}
    several, name = driver(A100, A100), "versions_nccl_nonblocking_hang"
    assert name in codes(found_by("versions", recorded(tmp_path, versions=versions, found=several)))
    assert name not in codes(found_by("versions", recorded(tmp_path, versions=versions, found=driver(A100))))
    mended = recorded(tmp_path, versions=versions, found=several, environ={"TORCH_NCCL_USE_COMM_NONBLOCKING": "0"})
    assert name not in codes(found_by("versions", mended))


@pytest.mark.parametrize(
    ("torch", "expected"),
    [("2.9.1", "no_document_attention"), ("2.10.0", "no_window_in_document_attention"), ("2.11.0", None)],
)
def test_torch_without_attention_for_packed_documents_on_gpus(tmp_path: Path, torch, expected) -> None:
    """2.11 has all that packing needs: the heads of keys and values are repeated for it."""
    versions = GOOD | {"torch": torch}
    found = found_by("versions", recorded(tmp_path / "gpu", versions=versions, found=driver(A100)))
    assert [code for code in codes(found) if "document" in code] == ([f"versions_{expected}"] if expected else [])
    without = found_by("versions", recorded(tmp_path / "cpu", versions=versions))
    assert not any("document" in code for code in codes(without))


def test_known_bad_on_arm_only(tmp_path: Path) -> None:
    versions = GOOD | {"nvidia-nccl-cu13": "2.28.9"}
    arm = {"/proc/cpuinfo": "processor : 0\nCPU implementer\t: 0x41\n"}
    here = recorded(tmp_path / "arm", files=arm, versions=versions, found=driver(A100, A100))
    assert codes(found_by("versions", here)) == ["versions_nccl_arm_hang"]
    x86 = recorded(tmp_path / "x86", versions=versions, found=driver(A100, A100))
    assert levels(found_by("versions", x86)) == FINE


def test_every_known_bad_row_has_a_source_and_known_packages(tmp_path: Path) -> None:
    from dsrun.doctor.machine_facts import LOOKED_AT

    for row in known_bad_rows():
        assert row.source.startswith("https://")
        assert set(row.packages) <= set(LOOKED_AT)
        assert row.message.format_map({name.replace("-", "_"): "1.0" for name in row.packages})


def test_version_outside_of_what_dsrun_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    monkeypatch.setattr(
        metadata,
        "requires",
        lambda _: ["click>=8", 'deepspeed<0.20,>=0.19.7; extra == "train"', 'ruff; extra == "lint"'],
    )
    assert [*required()] == ["deepspeed"]
    found = found_by("versions", recorded(tmp_path, versions=GOOD | {"deepspeed": "0.20.1"}))
    assert codes(found) == ["versions_range"]
    assert found[0].fix == "pip install 'deepspeed<0.20,>=0.19.7'"
    assert levels(found_by("versions", recorded(tmp_path, versions=GOOD))) == FINE


@pytest.mark.parametrize(
    ("versions", "named", "silent"),
    [
        ({"torch": "2.15.0+cu132"}, "torch 2.15.0+cu132:", "transformers"),
        ({"torch": "2.13.1", "transformers": "5.24.0"}, "transformers 5.24.0:", "torch"),
    ],
)
def test_versions_that_are_not_tested_are_told(tmp_path: Path, versions, named, silent) -> None:
    (found,) = found_by("versions", recorded(tmp_path, versions=GOOD | versions))
    assert (found.level, found.code) == ("info", "versions_untested")
    assert found.message.startswith(named)
    assert silent not in found.message


def test_tested_versions_are_those_of_constraints_txt(tmp_path: Path) -> None:
    from dsrun.system.host import TESTED

    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert {name: pinned[name] for name in TESTED} == TESTED
    assert all(specifier.contains(pinned[name]) for name, specifier in required().items() if name in pinned)
