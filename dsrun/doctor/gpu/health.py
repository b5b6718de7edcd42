"""Each GPU's memory errors, clocks and PCIe link, and how it is set up: persistence mode, MIG, compute mode."""

from collections.abc import Iterator, Sequence

from dsrun.datafiles import toml_beside
from dsrun.doctor.gpu.nvml import GpuState, of_gpus
from dsrun.doctor.gpu.presence import usable
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.findings.finding import Finding
from dsrun.findings.texts import finding_of, text_of
from dsrun.messages import Message
from dsrun.system.terminal.display import counted

BUSY = 2
"""The highest performance state under load: P0 to P2. An idle GPU (P8) lets its PCIe link run slowly."""


def look_at_ecc(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    gpus = usable(machine)
    found = [finding for gpu in gpus for finding in _memory_errors(gpu)]
    yield from found
    if not found and any(each.ecc_uncorrected is not None for each in gpus):
        yield finding_of("ecc", gpus=of_gpus(gpus))


def _memory_errors(gpu: GpuState) -> Iterator[Finding]:
    """A failed remap cannot be mended; a pending one is by a reset, as is the memory that an uncorrected error hit.

    NVIDIA GPU Memory Error Management (docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt), "Row Remapping"."""
    if gpu.remap_failed:
        yield finding_of("ecc_remap_failed", gpu=gpu)
    if gpu.ecc_uncorrected:
        errors = counted(gpu.ecc_uncorrected, "uncorrected ECC error")
        reset = text_of("ecc_remap_pending.fix", index=gpu.index)
        yield finding_of("ecc_uncorrected", gpu=gpu, errors=errors, reset=reset)
    if gpu.remap_pending or gpu.retirement_pending:
        yield finding_of("ecc_remap_pending", gpu=gpu, index=gpu.index)


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
        yield from [each for gpu in known for each in _slow_link(gpu)] or [finding_of("pcie", gpus=of_gpus(known))]


def _slow_link(gpu: GpuState) -> Iterator[Finding]:
    lanes, most = gpu.pcie_width or 0, gpu.pcie_width_max or 0
    if lanes < most:
        yield finding_of("pcie_width", gpu=gpu, lanes=lanes, most=most)
    generation, newest = gpu.pcie_generation, gpu.pcie_generation_max
    busy = gpu.performance_state is not None and gpu.performance_state <= BUSY
    if busy and (generation or 0) < (newest or 0):
        yield finding_of("pcie_generation", gpu=gpu, generation=generation, newest=newest)


EXCLUSIVE = (1, 3)
PROHIBITED = 2
"""nvmlComputeMode_t: 0 default, 1 exclusive thread (since removed), 2 prohibited, 3 exclusive process."""


def look_at_settings(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    gpus = usable(machine)
    if gpus:
        yield from list(_unfit(gpus, target.nproc)) or [finding_of("gpu_settings", gpus=of_gpus(gpus))]


def _unfit(gpus: Sequence[GpuState], ranks: int | None) -> Iterator[Finding]:
    if sleeping := [each for each in gpus if each.persistence is False]:
        yield finding_of("gpu_settings_persistence", gpus=of_gpus(sleeping))
    if parts := [each for each in gpus if each.mig]:
        yield finding_of("gpu_settings_mig" if len(gpus) > 1 else "gpu_settings_mig.one", gpus=of_gpus(parts))
    if closed := [each for each in gpus if each.compute_mode == PROHIBITED]:
        yield finding_of("gpu_settings_prohibited", gpus=of_gpus(closed))
    exclusive = [each for each in gpus if each.compute_mode in EXCLUSIVE]
    if exclusive and ranks is not None and ranks > len(gpus):
        shared = counted(len(gpus), "GPU")
        yield finding_of(
            "gpu_settings_exclusive", exclusive=of_gpus(exclusive), ranks=ranks, shared=shared, count=len(gpus)
        )
