"""Which GPUs a process started here would see, asked of the driver without making a CUDA context."""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from dsrun.machine.nvml import NvmlError, NvmlSession, nvml_session


@dataclass(frozen=True, kw_only=True)
class LocalGpu:
    """One GPU, or one MIG instance of it.

    `index` is the number CUDA gives it in this process; memory is in bytes, None for GPUs that share
    the host's."""

    index: int
    name: str
    uuid: str
    memory_total: int | None
    capability: tuple[int, int]
    mig: "tuple[LocalGpu, ...]" = ()

    @property
    def is_mig(self) -> bool:
        return self.uuid.startswith("MIG-")


def visible_gpus(environ: Mapping[str, str] | None = None) -> list[LocalGpu]:
    """The GPUs that CUDA would show a process with the environment `environ` (default: this process's).

    Empty without GPU, driver or permission. Indices in CUDA_VISIBLE_DEVICES are taken in PCI bus order,
    which is CUDA's order under CUDA_DEVICE_ORDER=PCI_BUS_ID and wherever all GPUs of the machine are alike."""
    environ = os.environ if environ is None else environ
    return select_visible(all_gpus(), environ.get("CUDA_VISIBLE_DEVICES"))


def select_visible(devices: Sequence[LocalGpu], visible: str | None) -> list[LocalGpu]:
    """Those of `devices` that the value `visible` of CUDA_VISIBLE_DEVICES shows, renumbered from 0.

    None shows all, the first invalid entry ends the list, and a GPU named twice leaves none, as the CUDA
    programming guide and the CUDA runtime have it. A GPU in MIG mode shows as its first instance, and one
    process sees one instance at most (NVIDIA MIG user guide, "Device enumeration")."""
    if visible is None:
        named = list(devices)
    else:
        named = []
        for entry in visible.split(","):
            device = _named(devices, entry.strip())
            if device is None:
                break
            named.append(device)
        if len({device.uuid for device in named}) < len(named):
            return []
    usable = [device.mig[0] if device.mig else device for device in named]
    if any(device.is_mig for device in usable):
        usable = [device for device in usable if device.is_mig][:1]
    return [replace(device, index=index) for index, device in enumerate(usable)]


def _named(devices: Sequence[LocalGpu], entry: str) -> LocalGpu | None:
    """The device that one entry means: an index, or a UUID, which may be cut short while it stays unique."""
    if entry.startswith(("GPU-", "MIG-")):
        every = devices if entry.startswith("GPU-") else [mig for device in devices for mig in device.mig]
        found = [device for device in every if device.uuid.startswith(entry)]
        return found[0] if len(found) == 1 else None
    number = re.match(r"\+?\d+", entry)  # CUDA reads it as strtol does: "1x" is 1
    if not number or int(number[0]) >= len(devices):
        return None
    return devices[int(number[0])]


def all_gpus() -> list[LocalGpu]:
    """All GPUs in PCI bus order; none when NVML cannot be queried."""
    with suppress(NvmlError), nvml_session() as nvml:
        found = []
        for index in range(nvml.call("nvmlDeviceGetCount")):
            handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
            gpu = _gpu(nvml, handle, index, tuple(nvml.call("nvmlDeviceGetCudaComputeCapability", handle)))
            found.append(replace(gpu, mig=_mig_instances(nvml, handle, gpu)))
        return found
    return []


def memory_used(environ: Mapping[str, str] | None = None) -> dict[str, int]:
    """The bytes in use on each GPU that a process with `environ` would see, by UUID; those without a memory of their
    own, or that cannot be asked, are left out."""
    found: dict[str, int] = {}
    with suppress(NvmlError), nvml_session() as nvml:
        for gpu in visible_gpus(environ):
            with suppress(NvmlError):
                handle = nvml.call("nvmlDeviceGetHandleByUUID", gpu.uuid)
                found[gpu.uuid] = int(nvml.call("nvmlDeviceGetMemoryInfo", handle).used)
    return found


def _gpu(nvml: NvmlSession, handle: Any, index: int, capability: tuple[int, int]) -> LocalGpu:
    memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle)  # GB10 and Jetson share the host's: "not supported"
    return LocalGpu(
        index=index,
        name=nvml.call("nvmlDeviceGetName", handle),
        uuid=nvml.call("nvmlDeviceGetUUID", handle),
        memory_total=int(memory.total) if memory else None,
        capability=capability,
    )


def _mig_instances(nvml: NvmlSession, handle: Any, parent: LocalGpu) -> tuple[LocalGpu, ...]:
    with suppress(NvmlError):  # not supported before A100
        if nvml.call("nvmlDeviceGetMigMode", handle)[0] != nvml.pynvml.NVML_DEVICE_MIG_ENABLE:
            return ()
        found = []
        for slot in range(nvml.call("nvmlDeviceGetMaxMigDeviceCount", handle)):
            with suppress(NvmlError):  # an empty slot is "not found"
                instance = nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot)
                found.append(_gpu(nvml, instance, slot, parent.capability))
        return tuple(found)
    return ()
