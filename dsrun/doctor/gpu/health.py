"""Each GPU's memory errors, clocks and PCIe link, and how it is set up: persistence mode, MIG, compute mode."""

from collections.abc import Iterator
from typing import Any

from dsrun.datafiles import toml_beside
from dsrun.doctor.gpu.nvml import of_gpus
from dsrun.doctor.gpu.presence import usable
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.findings.conditions import findings_where
from dsrun.findings.finding import Finding
from dsrun.findings.texts import finding_of, text_of
from dsrun.messages import Message
from dsrun.system.terminal.display import counted

BUSY = 2
"""The highest performance state under load: P0 to P2. An idle GPU (P8) lets its PCIe link run slowly."""


def look_at_ecc(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    gpus = usable(machine)
    found: list[Finding] = []
    for gpu in gpus:
        errors = counted(gpu.ecc_uncorrected or 0, "uncorrected ECC error")
        found += findings_where(__file__, "memory", gpu=gpu, errors=errors)
    yield from found
    if not found and any(each.ecc_uncorrected is not None for each in gpus):
        yield finding_of("ecc", gpus=of_gpus(gpus))


def look_at_clocks(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    gpus = [each for each in usable(machine) if each.throttle_reasons is not None]
    found = False
    for code, reason in toml_beside(__file__, "throttle_reasons.toml").items():
        slowed = [each for each in gpus if (each.throttle_reasons or 0) & int(reason["bit"])]
        if slowed:
            found = True
            heat = [f"{each.temperature_c} °C" for each in slowed if each.temperature_c is not None]
            at = f" ({', '.join(heat)})" if heat else ""
            message = text_of("gpu_clocks.slowed", gpus=of_gpus(slowed), at=at, means=Message(reason["means"]))
            yield Finding(level="warning", code=f"gpu_clocks_{code}", message=message, fix=Message(reason["fix"]))
    if limited := [each for each in gpus if each.is_power_limited]:
        found = True
        limit, default = limited[0].power_limit_w, limited[0].power_limit_default_w
        yield finding_of("gpu_clocks_power_limit", gpus=of_gpus(limited), limit=limit, default=default)
    if gpus and not found:
        yield finding_of("gpu_clocks", gpus=of_gpus(gpus))


def look_at_pcie(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    known = [each for each in usable(machine) if each.pcie_width and each.pcie_width_max]
    if known:
        found = [each for gpu in known for each in findings_where(__file__, "pcie", gpu=gpu, BUSY=BUSY)]
        yield from found or [finding_of("pcie", gpus=of_gpus(known))]


EXCLUSIVE = (1, 3)
PROHIBITED = 2
"""nvmlComputeMode_t: 0 default, 1 exclusive thread (since removed), 2 prohibited, 3 exclusive process."""


def look_at_settings(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    gpus = usable(machine)
    kinds: dict[str, Any] = {
        "shared": counted(len(gpus), "GPU"),
        "sleeping": [each for each in gpus if each.persistence is False],
        "parts": [each for each in gpus if each.mig],
        "closed": [each for each in gpus if each.compute_mode == PROHIBITED],
        "alone": [each for each in gpus if each.compute_mode in EXCLUSIVE],
    }
    found = findings_where(__file__, "settings", count=len(gpus), ranks=target.nproc, of_gpus=of_gpus, **kinds)
    if gpus:
        yield from list(found) or [finding_of("gpu_settings", gpus=of_gpus(gpus))]
