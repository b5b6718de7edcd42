"""What NVIDIA's driver says of itself, of the GPUs, of their free memory and of the processes that hold the rest."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from dsrun.machine.gpus import LocalGpu, all_gpus, select_visible
from dsrun.machine.nvml import NvmlError, NvmlSession, nvml_session


@dataclass(frozen=True, kw_only=True)
class MemoryHolder:
    """A process that holds memory of a GPU: its name and user as far as this process may know them, and the bytes."""

    pid: int
    name: str = ""
    user: str = ""
    used: int | None = None

    def __str__(self) -> str:
        return f"{self.name or 'process'} {self.pid}" + (f" of {self.user}" if self.user else "")


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Memory of a GPU: free bytes, None where it shares the host's, and who holds the rest."""

    free: int | None
    holders: tuple[MemoryHolder, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DriverState:
    """`version` of the driver ("580.65.06"), the newest CUDA that it knows ("13.0"), all GPUs in PCI order, and their
    memory by UUID."""

    version: str
    cuda: str | None = None
    gpus: tuple[LocalGpu, ...] = ()
    memory: Mapping[str, MemoryUse]

    def visible(self, environ: Mapping[str, str]) -> list[LocalGpu]:
        """The GPUs that a process with the environment `environ` sees, numbered as CUDA numbers them there."""
        return select_visible(self.gpus, environ.get("CUDA_VISIBLE_DEVICES"))


def query_driver() -> DriverState | None:
    """What NVML says; None without a driver."""
    with suppress(NvmlError), nvml_session() as nvml:
        version = str(nvml.ask("nvmlSystemGetDriverVersion") or "")
        number = nvml.ask("nvmlSystemGetCudaDriverVersion_v2")
        # 13010 is 13.1 (NVML_CUDA_DRIVER_VERSION_MAJOR and _MINOR in nvml.h).
        cuda = f"{number // 1000}.{number % 1000 // 10}" if number else None
        gpus = tuple(all_gpus())
        every = [each for gpu in gpus for each in (gpu, *gpu.mig)]
        memory = {each.uuid: _memory(nvml, each.uuid) for each in every}
        return DriverState(version=version, cuda=cuda, gpus=gpus, memory=memory)
    return None


def _memory(nvml: NvmlSession, uuid: str) -> MemoryUse:
    handle = nvml.ask("nvmlDeviceGetHandleByUUID", uuid)
    if handle is None:
        return MemoryUse(free=None)
    memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle)
    running = nvml.ask("nvmlDeviceGetComputeRunningProcesses", handle) or ()
    holders = tuple(_holder(int(each.pid), each.usedGpuMemory) for each in running)
    return MemoryUse(free=int(memory.free) if memory else None, holders=holders)


def _holder(pid: int, used: int | None) -> MemoryHolder:
    """Inside a container the numbers may be the host's, which name nothing here."""
    import psutil

    name = user = ""
    with suppress(psutil.Error, KeyError):
        process = psutil.Process(pid)
        name, user = process.name(), process.username()
    return MemoryHolder(pid=pid, name=name, user=user, used=used)
