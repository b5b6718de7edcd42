"""`--deep`: tests that use the GPUs for minutes, by NVIDIA's own programs where they are installed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from shutil import which
from typing import Any

from dsrun.doctor.check import Check, failure, fine, warning
from dsrun.doctor.gpu.presence import usable
from dsrun.doctor.machine import DEEP_PROGRAM_S, Machine, Target
from dsrun.errors import DsrunError
from dsrun.findings.finding import Finding
from dsrun.messages import Message

DEEP_LIMIT_S = DEEP_PROGRAM_S + 10
"""Seconds that such a check may take."""
ALL_REDUCE = ("-b", "8M", "-e", "256M", "-f", "2")
_BANDWIDTH = re.compile(r"#\s*Avg bus bandwidth\s*:\s*([\d.]+)")
_WRONG = re.compile(r"#\s*Out of bounds values\s*:\s*(\d+)\s+(\w+)")
_SUM = re.compile(r"^SUM (\S+)\s+([\d.]+)", re.MULTILINE)
HOST_COPIES = ("host_to_device_memcpy_ce", "device_to_host_memcpy_ce")
SLOW_COPY_GBPS = 5.0
"""GB/s of one GPU below which its PCIe link is broken: four lanes of generation 3 make 4."""


def _program(machine: Machine, *names: str) -> str | None:
    """The first of these programs that is on PATH."""
    search = machine.environ.get("PATH", "")
    return next((name for name in names if which(name, path=search)), None)


def _ran(machine: Machine, argv: Sequence[str], code: str) -> tuple[str, Finding | None]:
    """The program's output, and a finding where it failed or took too long."""
    shown = " ".join(argv)
    alone = Message("run {command} by itself", command=shown)
    try:
        done = machine.run_long(argv)
    except DsrunError as error:
        return "", warning(f"{code}_fails", error.message, alone)
    if done.returncode == 0:
        return done.stdout, None
    text = done.stderr.strip() or done.stdout.strip()
    last = text.splitlines()[-1] if text else Message("exit code {code}", code=done.returncode)
    message = Message("{command} fails: {last}", command=shown, last=last)
    return done.stdout, warning(f"{code}_fails", message, alone)


def _dcgm(machine: Machine, target: Target) -> Iterator[Finding]:
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
        yield failure(
            "dcgm_failed",
            Message("dcgmi diag: {name} failed: {why}" if why else "dcgmi diag: {name} failed", name=name, why=why),
            Message("dcgmi diag -r 3 says more; drain the node"),
        )
    if not failed:
        yield fine("dcgm", Message("dcgmi diag -r 1 found nothing"))


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


def _all_reduce(machine: Machine, target: Target) -> Iterator[Finding]:
    """nccl-tests' all_reduce over the GPUs of this machine: right values, and its bus bandwidth."""
    gpus = usable(machine)
    program = _program(machine, "all_reduce_perf", "all_reduce_perf_mpi")
    if len(gpus) < 2 or program is None:
        return
    output, broken = _ran(machine, [program, *ALL_REDUCE, "-g", str(len(gpus))], "nccl_tests")
    wrong, bandwidth = _WRONG.search(output), _BANDWIDTH.search(output)
    if wrong and wrong[2] != "OK":
        yield failure(
            "nccl_tests_wrong",
            Message("all_reduce gives {count} wrong values on these GPUs", count=wrong[1]),
            Message("NCCL_P2P_DISABLE=1 tells whether PCIe is to blame (ACS, IOMMU); drain the node"),
        )
    elif broken:
        yield broken
    elif bandwidth:
        message = Message(
            "all_reduce over {count} GPUs: bus bandwidth {bandwidth:.0f} GB/s",
            count=len(gpus),
            bandwidth=float(bandwidth[1]),
        )
        yield fine("nccl_tests", message)


def _bandwidth(machine: Machine, target: Target) -> Iterator[Finding]:
    """nvbandwidth's copies between host and GPUs."""
    gpus = usable(machine)
    if not gpus or not _program(machine, "nvbandwidth"):
        return
    output, broken = _ran(machine, ["nvbandwidth", "-t", *HOST_COPIES], "nvbandwidth")
    sums = {name: float(total) / len(gpus) for name, total in _SUM.findall(output)}
    slow = {name: rate for name, rate in sums.items() if name in HOST_COPIES and rate < SLOW_COPY_GBPS}
    for name, rate in slow.items():
        yield warning(
            "nvbandwidth_slow",
            Message("{name}: {rate:.1f} GB/s for each GPU", name=name, rate=rate),
            Message("lspci -vv shows lanes and generation of the link (LnkSta); nvidia-smi topo -m the NUMA nodes"),
        )
    if broken and not sums:
        yield broken
    elif sums and not slow:
        rates = ", ".join(f"{name} {rate:.0f} GB/s" for name, rate in sums.items())
        yield fine("nvbandwidth", Message("for each GPU {rates}", rates=rates))


DCGM = Check(
    "dcgm", "DCGM diagnostics", _dcgm, needs="needs an NVIDIA GPU and dcgmi", finds="what `dcgmi diag -r 1` finds"
)
NCCL_TESTS = Check(
    "nccl_tests",
    "nccl-tests, all_reduce",
    _all_reduce,
    needs="needs several GPUs and all_reduce_perf",
    finds="wrong values of all_reduce between the GPUs of this machine, and its bus bandwidth",
)
NVBANDWIDTH = Check(
    "nvbandwidth",
    "nvbandwidth",
    _bandwidth,
    needs="needs an NVIDIA GPU and nvbandwidth",
    finds="copies between host and GPUs that are slower than any PCIe link should be",
)
DEEP_CHECKS = (DCGM, NCCL_TESTS, NVBANDWIDTH)
