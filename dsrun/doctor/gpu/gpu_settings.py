"""How the GPUs are set up: persistence mode, MIG, compute mode."""

from collections.abc import Iterator, Sequence

from dsrun.doctor.gpu.nvml import GpuState, of_gpus
from dsrun.doctor.gpu.presence import usable
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.findings.finding import Finding
from dsrun.findings.texts import finding_of
from dsrun.system.terminal.display import counted

EXCLUSIVE = (1, 3)
PROHIBITED = 2
"""nvmlComputeMode_t: 0 default, 1 exclusive thread (since removed), 2 prohibited, 3 exclusive process."""


def look(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    gpus = usable(machine)
    found = list(_unfit(gpus, target.nproc))
    yield from found
    if gpus and not found:
        yield finding_of("gpu_settings", gpus=of_gpus(gpus))


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
