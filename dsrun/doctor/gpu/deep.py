"""`--deep`: tests that use the GPUs for minutes, by NVIDIA's own programs where they are installed."""

import json
import re
from collections.abc import Iterator, Sequence
from shutil import which
from typing import Any

from dsrun.doctor.gpu.presence import usable
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.errors import DsrunError
from dsrun.findings.finding import Finding, finding_of, text_of

# Sizes at which bandwidth counts and not latency: from 8 to 256 MiB, each twice the one before.
ALL_REDUCE = ("-b", "8M", "-e", "256M", "-f", "2")
_BANDWIDTH = re.compile(r"#\s*Avg bus bandwidth\s*:\s*([\d.]+)")
_WRONG = re.compile(r"#\s*Out of bounds values\s*:\s*(\d+)\s+(\w+)")
_SUM = re.compile(r"^SUM (\S+)\s+([\d.]+)", re.MULTILINE)
HOST_COPIES = ("host_to_device_memcpy_ce", "device_to_host_memcpy_ce")
SLOW_COPY_GBPS = 5.0
"""GB/s of one GPU below which its PCIe link is broken: four lanes of generation 3 make 4."""


def _program(machine: MachineFacts, *names: str) -> str | None:
    """The first of these programs that is on PATH."""
    search = machine.environ.get("PATH", "")
    return next((name for name in names if which(name, path=search)), None)


def _ran(machine: MachineFacts, argv: Sequence[str], code: str) -> tuple[str, Finding | None]:
    """The program's output, and a finding where it failed or took too long."""
    shown = " ".join(argv)
    try:
        done = machine.run_long(argv)
    except DsrunError as error:
        alone = text_of("fails.fix", command=shown)
        return "", Finding(level="warning", code=f"{code}_fails", message=error.message, fix=alone)
    if done.returncode == 0:
        return done.stdout, None
    text = done.stderr.strip() or done.stdout.strip()
    last = text.splitlines()[-1] if text else text_of("fails.exit_code", code=done.returncode)
    return done.stdout, finding_of("fails", prefix=f"{code}_", command=shown, last=last)


def look_at_dcgm(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """Level 1 of DCGM's diagnostics: software, permissions, and memory of the GPUs, some seconds."""
    if not usable(machine) or not _program(machine, "dcgmi"):
        return
    output, broken = _ran(machine, ["dcgmi", "diag", "-r", "1", "-j"], "dcgm")
    try:
        failed = dict(_failed_tests(json.loads(output[output.index("{") :])))
    except ValueError:
        if broken:
            yield broken
        return
    for name, why in failed.items():
        yield finding_of("dcgm_failed.why", name=name, why=why) if why else finding_of("dcgm_failed", name=name)
    if not failed:
        yield finding_of("dcgm")


def _failed_tests(report: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Each test of `dcgmi diag -j` with a status of "Fail"; DCGM 3 and 4 nest them differently."""
    if isinstance(report, list):
        for each in report:
            yield from _failed_tests(each, name)
    elif isinstance(report, dict):
        name = str(report.get("name", name))
        if str(report.get("status", "")).lower() == "fail":
            why = report.get("warnings") or report.get("info") or ""
            first = why[0] if isinstance(why, list) and why else why
            yield name, str(first.get("warning", first) if isinstance(first, dict) else first)
        else:
            for value in report.values():
                yield from _failed_tests(value, name)


def look_at_all_reduce(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """nccl-tests' all_reduce over the GPUs of this machine: right values, and its bus bandwidth."""
    gpus = usable(machine)
    program = _program(machine, "all_reduce_perf", "all_reduce_perf_mpi")
    if len(gpus) < 2 or program is None:
        return
    output, broken = _ran(machine, [program, *ALL_REDUCE, "-g", str(len(gpus))], "nccl_tests")
    wrong, bandwidth = _WRONG.search(output), _BANDWIDTH.search(output)
    if wrong and wrong[2] != "OK":
        yield finding_of("nccl_tests_wrong", count=wrong[1])
    elif broken:
        yield broken
    elif bandwidth:
        yield finding_of("nccl_tests", count=len(gpus), bandwidth=float(bandwidth[1]))


def look_at_bandwidth(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """nvbandwidth's copies between host and GPUs."""
    gpus = usable(machine)
    if not gpus or not _program(machine, "nvbandwidth"):
        return
    output, broken = _ran(machine, ["nvbandwidth", "-t", *HOST_COPIES], "nvbandwidth")
    sums = {name: float(total) / len(gpus) for name, total in _SUM.findall(output)}
    slow = {name: rate for name, rate in sums.items() if name in HOST_COPIES and rate < SLOW_COPY_GBPS}
    for name, rate in slow.items():
        yield finding_of("nvbandwidth_slow", name=name, rate=rate)
    if broken and not sums:
        yield broken
    elif sums and not slow:
        yield finding_of("nvbandwidth", rates=", ".join(f"{name} {rate:.0f} GB/s" for name, rate in sums.items()))
