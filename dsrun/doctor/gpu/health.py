"""Each GPU's memory errors, clocks and PCIe link."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from dsrun.datafiles import toml_beside
from dsrun.doctor.check import Check, failure, fine, warning
from dsrun.doctor.gpu.nvml import GpuState, of_gpus
from dsrun.doctor.gpu.presence import usable
from dsrun.doctor.machine import Machine, Target
from dsrun.findings.finding import Finding
from dsrun.messages import Message
from dsrun.system.display import counted

BUSY = 2
"""The highest performance state under load: P0 to P2. An idle GPU (P8) lets its PCIe link run slowly."""


def _ecc(machine: Machine, target: Target) -> Iterator[Finding]:
    gpus = usable(machine)
    found = False
    for gpu in gpus:
        for finding in _memory_errors(gpu):
            found = True
            yield finding
    if not found and any(each.ecc_uncorrected is not None for each in gpus):
        yield fine("ecc", Message("no uncorrected memory error on {gpus}", gpus=of_gpus(gpus)))


def _memory_errors(gpu: GpuState) -> Iterator[Finding]:
    """A failed remap cannot be mended; a pending one is by a reset, as is the memory that an uncorrected error hit.

    NVIDIA GPU Memory Error Management (docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt), "Row Remapping"."""
    if gpu.remap_failed:
        yield failure(
            "ecc_remap_failed",
            Message("{gpu}: faulty memory rows could not be replaced", gpu=gpu),
            Message("drain the node and have the GPU replaced (nvidia-smi -q -d ROW_REMAPPER)"),
        )
    if gpu.ecc_uncorrected:
        yield failure(
            "ecc_uncorrected",
            Message(
                "{gpu}: {errors} since the driver was loaded",
                gpu=gpu,
                errors=counted(gpu.ecc_uncorrected, "uncorrected ECC error"),
            ),
            Message(
                "{reset}; if they come back, have the GPU replaced (nvidia-smi -q -d ECC)",
                reset=_reset(gpu),
            ),
        )
    if gpu.remap_pending or gpu.retirement_pending:
        yield warning(
            "ecc_remap_pending",
            Message("{gpu}: faulty memory is to be replaced with the next reset", gpu=gpu),
            _reset(gpu),
        )


def _reset(gpu: GpuState) -> Message:
    return Message(
        "end its processes and reset it (sudo nvidia-smi --gpu-reset -i {index}), or reboot", index=gpu.index
    )


@cache
def _reasons() -> dict[str, Any]:
    return toml_beside(__file__, "throttle_reasons.toml")


def _clocks(machine: Machine, target: Target) -> Iterator[Finding]:
    gpus = [each for each in usable(machine) if each.throttle_reasons is not None]
    found = False
    for code, reason in _reasons().items():
        slowed = [each for each in gpus if (each.throttle_reasons or 0) & int(reason["bit"])]
        if slowed:
            found = True
            heat = [f"{each.temperature_c} °C" for each in slowed if each.temperature_c is not None]
            at = f" ({', '.join(heat)})" if heat else ""
            message = Message("{gpus}{at}: {means}", gpus=of_gpus(slowed), at=at, means=Message(reason["means"]))
            yield warning(f"gpu_clocks_{code}", message, Message(reason["fix"]))
    limited = [each for each in gpus if each.is_power_limited]
    if limited:
        found = True
        first = limited[0]
        yield warning(
            "gpu_clocks_power_limit",
            Message(
                "{gpus}: the power limit is {limit} W of {default} W",
                gpus=of_gpus(limited),
                limit=first.power_limit_w,
                default=first.power_limit_default_w,
            ),
            f"sudo nvidia-smi -pl {first.power_limit_default_w}",
        )
    if gpus and not found:
        yield fine("gpu_clocks", Message("{gpus}: nothing slows the clocks down", gpus=of_gpus(gpus)))


def _pcie(machine: Machine, target: Target) -> Iterator[Finding]:
    gpus = usable(machine)
    known = [each for each in gpus if each.pcie_width and each.pcie_width_max]
    found = False
    for gpu in known:
        lanes, most = gpu.pcie_width or 0, gpu.pcie_width_max or 0
        if lanes < most:
            found = True
            yield warning(
                "pcie_width",
                Message(
                    "{gpu}: PCIe runs with {lanes} of {most} lanes, and copies are slower by as much",
                    gpu=gpu,
                    lanes=lanes,
                    most=most,
                ),
                Message("have the GPU reseated, or its riser or slot changed (lspci -vv shows LnkSta and LnkCap)"),
            )
        slow = (gpu.pcie_generation or 0) < (gpu.pcie_generation_max or 0)
        if slow and gpu.performance_state is not None and gpu.performance_state <= BUSY:
            found = True
            yield warning(
                "pcie_generation",
                Message(
                    "{gpu}: PCIe runs as generation {generation} of {newest} under load",
                    gpu=gpu,
                    generation=gpu.pcie_generation,
                    newest=gpu.pcie_generation_max,
                ),
                Message("set the slot's link speed to auto in the firmware set-up, or have riser and slot changed"),
            )
    if known and not found:
        yield fine("pcie", Message("{gpus}: all PCIe lanes are in use", gpus=of_gpus(known)))


ECC = Check(
    "ecc",
    "ECC and row remapping",
    _ecc,
    needs="needs an NVIDIA GPU with ECC",
    finds="uncorrected memory errors; faulty memory rows that wait for a reset, or could not be replaced",
)
CLOCKS = Check(
    "gpu_clocks",
    "GPU clocks",
    _clocks,
    needs="needs an NVIDIA GPU",
    finds="GPUs that heat, the power supply or a power limit slow down, by the driver's reasons",
)
PCIE = Check(
    "pcie",
    "PCIe link of the GPUs",
    _pcie,
    needs="needs an NVIDIA GPU",
    finds="PCIe links with fewer lanes, or under load of an older generation, than GPU and slot have",
)
CHECKS = (ECC, CLOCKS, PCIE)
