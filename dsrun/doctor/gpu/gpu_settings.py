"""How the GPUs are set up: persistence mode, MIG, compute mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsrun.doctor.check import Check, failure, fine, warning
from dsrun.doctor.gpu.nvml import GpuState, of_gpus
from dsrun.doctor.gpu.presence import usable
from dsrun.doctor.machine import Machine, Target
from dsrun.findings.finding import Finding
from dsrun.messages import Message
from dsrun.system.display import counted

EXCLUSIVE = (1, 3)
PROHIBITED = 2
"""nvmlComputeMode_t: 0 default, 1 exclusive thread (since removed), 2 prohibited, 3 exclusive process."""


def _settings(machine: Machine, target: Target) -> Iterator[Finding]:
    gpus = usable(machine)
    found = list(_unfit(gpus, target.nproc))
    yield from found
    if gpus and not found:
        yield fine("gpu_settings", Message("{gpus}: set up for training", gpus=of_gpus(gpus)))


def _unfit(gpus: Sequence[GpuState], ranks: int | None) -> Iterator[Finding]:
    sleeping = [each for each in gpus if each.persistence is False]
    if sleeping:
        yield warning(
            "gpu_settings_persistence",
            Message(
                "{gpus}: persistence mode is off, so the driver starts anew with every job",
                gpus=of_gpus(sleeping),
            ),
            Message("sudo nvidia-smi -pm 1, or enable the service nvidia-persistenced"),
        )
    parts = [each for each in gpus if each.mig]
    if parts and len(gpus) > 1:
        yield warning(
            "gpu_settings_mig",
            Message(
                "{gpus}: MIG is on; a process sees one instance only, and NCCL joins none of them",
                gpus=of_gpus(parts),
            ),
            Message("sudo nvidia-smi -mig 0 -i N on GPUs that train together, or train on one instance"),
        )
    elif parts:
        message = Message("{gpus}: MIG is on; a run here has one instance", gpus=of_gpus(parts))
        yield fine("gpu_settings_mig", message)
    closed = [each for each in gpus if each.compute_mode == PROHIBITED]
    if closed:
        yield failure(
            "gpu_settings_prohibited",
            Message("{gpus}: the compute mode is Prohibited, so no program may use it", gpus=of_gpus(closed)),
            "sudo nvidia-smi -c DEFAULT",
        )
    exclusive = [each for each in gpus if each.compute_mode in EXCLUSIVE]
    if exclusive and ranks is not None and ranks > len(gpus):
        yield failure(
            "gpu_settings_exclusive",
            Message(
                "{exclusive}: the compute mode is Exclusive, but {ranks} ranks share {shared}",
                exclusive=of_gpus(exclusive),
                ranks=ranks,
                shared=counted(len(gpus), "GPU"),
            ),
            Message("--nproc {count}, or sudo nvidia-smi -c DEFAULT", count=len(gpus)),
        )


SETTINGS = Check(
    "gpu_settings",
    "persistence, MIG, compute mode",
    _settings,
    needs="needs an NVIDIA GPU",
    finds="persistence mode off, MIG on, a compute mode that keeps ranks from their GPU",
)
CHECKS = (SETTINGS,)
