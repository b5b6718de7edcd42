"""`--deep`: recorded answers of dcgmi, nccl-tests and nvbandwidth."""

import json

import pytest

from dsrun.doctor.gpu.nvml import GpuState
from dsrun.doctor.registry import DEEP_CHECKS
from dsrun.errors import ToolError
from tests.unit.doctor.recorded import found_by, levels_by_code, recorded

GPUS = [GpuState(index=index, name="NVIDIA H100") for index in range(2)]
DIAG = "dcgmi diag -r 1 -j"
ALL_REDUCE = "all_reduce_perf -b 8M -e 256M -f 2 -g 2"
COPIES = "nvbandwidth -t host_to_device_memcpy_ce device_to_host_memcpy_ce"


def installed(root, programs, **more):
    """The programs are on PATH, and answer as recorded."""
    for command in programs:
        path = root / "bin" / command.split()[0]
        path.parent.mkdir(exist_ok=True)
        path.touch(mode=0o755)
    return recorded(root, gpus=GPUS, programs=programs, environ={"PATH": str(root / "bin")}, **more)


def diag(status: str) -> str:
    """As DCGM 3 nests it."""
    tests = [{"name": "Denylist", "results": [{"status": "Pass"}]}]
    tests.append({"name": "PCIe", "results": [{"gpu_id": "1", "status": status, "warnings": ["link is x8"]}]})
    return json.dumps({"DCGM GPU Diagnostic": {"test_categories": [{"category": "Deployment", "tests": tests}]}})


def test_dcgm(tmp_path):
    assert levels_by_code("dcgm", installed(tmp_path, {DIAG: diag("Pass")})) == {"dcgm": "info"}
    finding = found_by("dcgm", installed(tmp_path, {DIAG: (226, diag("Fail"))}))[0]
    assert (finding.level, finding.code) == ("error", "dcgm_failed")
    assert finding.message == "dcgmi diag: PCIe failed: link is x8"


def test_dcgm_without_its_daemon(tmp_path):
    finding = found_by(
        "dcgm", installed(tmp_path, {DIAG: (1, "Error: unable to establish a connection to the host engine")})
    )[0]
    assert (finding.level, finding.code) == ("warning", "dcgm_fails")
    assert "host engine" in finding.message


NCCL = """#       size         count      type   redop    root     time   algbw   busbw #wrong
   268435456      67108864     float     sum      -1   1234.5  217.45  380.10      0
# Out of bounds values : {} {}
# Avg bus bandwidth    : 362.118
#
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (NCCL.format(0, "OK"), {"nccl_tests": "info"}),
        (NCCL.format(12, "FAILED"), {"nccl_tests_wrong": "error"}),
        ((1, "node1: Test NCCL failure"), {"nccl_tests_fails": "warning"}),
    ],
)
def test_nccl_tests(tmp_path, text, expected):
    findings = found_by("nccl_tests", installed(tmp_path, {ALL_REDUCE: text}))
    assert {each.code: each.level for each in findings} == expected
    if "nccl_tests" in expected:
        assert findings[0].message == "all_reduce over 2 GPUs: bus bandwidth 362 GB/s"


COPIED = "SUM host_to_device_memcpy_ce {}\n\nRunning x.\nSUM device_to_host_memcpy_ce 110.02\n"


def test_nvbandwidth(tmp_path):
    assert levels_by_code("nvbandwidth", installed(tmp_path, {COPIES: COPIED.format("110.40")})) == {
        "nvbandwidth": "info"
    }
    finding = found_by("nvbandwidth", installed(tmp_path, {COPIES: COPIED.format("6.10")}))[0]
    assert (finding.level, finding.code) == ("warning", "nvbandwidth_slow")
    assert finding.message == "host_to_device_memcpy_ce: 3.0 GB/s for each GPU"


def test_program_that_hangs(tmp_path):
    def run(argv):
        raise ToolError("all_reduce_perf did not end within 300 s")

    assert levels_by_code("nccl_tests", installed(tmp_path, {ALL_REDUCE: ""}, run_long=run)) == {
        "nccl_tests_fails": "warning"
    }


@pytest.mark.parametrize("check", [each.code for each in DEEP_CHECKS])
def test_deep_checks_are_never_required(tmp_path, check):
    assert levels_by_code(check, recorded(tmp_path, gpus=GPUS, environ={"PATH": str(tmp_path)})) == {}
    assert levels_by_code(check, recorded(tmp_path)) == {}
