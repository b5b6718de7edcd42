"""What the driver says of every GPU, read through NVML once; a question that it does not answer is None."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from ctypes import byref
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from typing import Any

from dsrun.datafiles import evaluate, toml_beside
from dsrun.findings.finding import text_of
from dsrun.machine.nvml import NvmlError, NvmlSession, nvml_session
from dsrun.messages import Message

LIBRARY_NOT_FOUND = 12
DRIVER_NOT_LOADED = 9
NO_PERMISSION = 4
VERSION_MISMATCH = 18
"""NVML's return codes (nvmlReturn_t in nvml.h) of a driver that does not answer."""
NO_ANSWER = -1
"""Instead of one of these, of a driver that hangs."""
ANSWER_S = 6.0
"""Less than a check may take: where the driver hangs, one check says so, and the others have no GPU to look at."""

FABRIC_COMPLETED = 3
"""nvmlGpuFabricState_t: 0 not supported, 1 not started, 2 in progress, 3 completed."""
P2P_OK = 0
P2P_READ = 0
"""NVML_P2P_CAPS_INDEX_READ, which is a tuple in nvidia-ml-py 13.615.71, so that the question fails."""
LINKS_AT_MOST = 18
"""NVLinks of one GPU (NVML_NVLINK_MAX_LINKS); an H100 has 18."""


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """One GPU. `index` is that of nvidia-smi, `bus` its PCI address as sysfs writes it ("0000:3b:00.0").

    `throttle_reasons` are NVML's bits; `ecc_uncorrected` counts since the driver was loaded; `nvlinks` says of each
    NVLink whether it is up, `peers` of each GPU of the machine, by index, whether this one can read it
    (nvmlGpuP2PStatus_t); `fabric` is that of GPUs behind NVSwitches of their own kind (nvmlGpuFabricState_t)."""

    index: int
    name: str = "NVIDIA GPU"
    uuid: str = ""
    bus: str = ""
    persistence: bool | None = None
    mig: bool | None = None
    compute_mode: int | None = None
    performance_state: int | None = None
    throttle_reasons: int | None = None
    temperature_c: int | None = None
    power_limit_w: int | None = None
    power_limit_default_w: int | None = None
    ecc_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retirement_pending: bool | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    nvlinks: tuple[bool, ...] = ()
    fabric: int | None = None
    peers: tuple[int | None, ...] = ()

    @property
    def is_power_limited(self) -> bool:
        """Whether somebody set the power limit below the GPU's own."""
        return bool(
            self.power_limit_w and self.power_limit_default_w and self.power_limit_w < self.power_limit_default_w
        )

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.name}{f', {self.bus}' if self.bus else ''})"


@dataclass(frozen=True, kw_only=True)
class NvmlAnswer:
    """The driver's answer: its GPUs in PCI bus order, or the `error` code and words of NVML. `lost` are the indices of
    GPUs that it counts and cannot reach."""

    gpus: tuple[GpuState, ...] = ()
    error: int | None = None
    message: str = ""
    lost: tuple[int, ...] = ()


def of_gpus(gpus: Sequence[GpuState]) -> Message:
    """`GPU 3` or `GPUs 0, 3`, for a message."""
    indices = ", ".join(str(each.index) for each in gpus)
    return text_of("gpu_names.several" if len(gpus) > 1 else "gpu_names.one", indices=indices)


_starting = threading.Lock()
_answers: list[NvmlAnswer] = []


def query_gpus() -> NvmlAnswer:
    """What the driver says; it is asked once a process, whichever of the checks comes first, and given ANSWER_S."""
    with _starting:  # two threads may call a cached function at once
        thread = _asking()
    thread.join(ANSWER_S)
    return _answers[0] if _answers else NvmlAnswer(error=NO_ANSWER, message=f"no answer within {ANSWER_S:g} s")


@cache
def _asking() -> threading.Thread:
    thread = threading.Thread(target=lambda: _answers.append(_read()), name="NVML", daemon=True)
    thread.start()
    return thread


def _read() -> NvmlAnswer:
    try:
        with nvml_session() as nvml:
            return _driver(nvml)
    except NvmlError as error:
        return NvmlAnswer(error=error.code, message=str(error))


def _driver(nvml: NvmlSession) -> NvmlAnswer:
    handles: dict[int, Any] = {}
    lost: list[int] = []
    for index in range(nvml.call("nvmlDeviceGetCount")):
        try:
            handles[index] = nvml.call("nvmlDeviceGetHandleByIndex", index)
        except NvmlError as error:
            if error.code != NO_PERMISSION:  # another user's, behind a cgroup
                lost.append(index)
    everyone = [handles.get(index) for index in range(max(handles, default=-1) + 1)]
    gpus = tuple(_gpu(nvml, index, handle, everyone) for index, handle in handles.items())
    return NvmlAnswer(gpus=gpus, lost=tuple(lost))


def _gpu(nvml: NvmlSession, index: int, handle: Any, everyone: Sequence[Any]) -> GpuState:
    def ask(name: str, *arguments: Any) -> Any:
        return nvml.ask(name, handle, *arguments)

    told = {}
    for field, row in toml_beside(__file__)["questions"].items():
        answer = ask(row["ask"], *(getattr(nvml.pynvml, name) for name in row.get("of", ())))
        known = answer is not None and "is" in row
        told[field] = evaluate(row["is"], {"answer": answer, "bool": bool}) if known else answer
    links = (ask("nvmlDeviceGetNvLinkState", link) for link in range(LINKS_AT_MOST))
    return GpuState(
        index=index,
        name=ask("nvmlDeviceGetName") or "NVIDIA GPU",
        uuid=ask("nvmlDeviceGetUUID") or "",
        bus=_bus(ask("nvmlDeviceGetPciInfo")),
        **told,
        # GPUs without NVLink refuse the first question, and others those beyond their last link.
        nvlinks=tuple(map(bool, takewhile(lambda state: state is not None, links))),
        fabric=_fabric(nvml, handle),
        peers=tuple(
            P2P_OK if other is handle else None if other is None else ask("nvmlDeviceGetP2PStatus", other, P2P_READ)
            for other in everyone
        ),
    )


def _bus(info: Any) -> str:
    """NVML's "00000000:3B:00.0" as sysfs has it."""
    if info is None:
        return ""
    text = info.busId.decode() if isinstance(info.busId, bytes) else str(info.busId)
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _fabric(nvml: NvmlSession, handle: Any) -> int | None:
    """The state of the registration with the fabric; None where the GPU needs none."""
    with suppress(NvmlError, AttributeError):
        info = nvml.pynvml.c_nvmlGpuFabricInfo_t()
        nvml.call("nvmlDeviceGetGpuFabricInfo", handle, byref(info))
        return int(info.state) or None
    return None
