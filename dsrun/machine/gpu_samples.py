"""What the GPUs of this machine are doing right now: from NVML, and from nvidia-smi where NVML cannot be loaded."""

import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from dsrun.machine.gpus import LocalGpu, select_visible, visible_gpus
from dsrun.machine.nvml import NvmlError, NvmlSession, nvml_session

NVIDIA_SMI_TIMEOUT_S = 10.0

# nvmlClocksEventReasons of nvml.h, without those that are nobody's trouble: 0x1 idle, 0x2 application clocks,
# 0x10 sync boost, 0x100 display clocks.
THROTTLE_REASONS = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
}

_MIB = 1 << 20
_FIELDS = (
    "index", "uuid", "name", "utilization.gpu", "memory.used", "memory.total", "power.draw", "power.limit",
    "temperature.gpu", "clocks.sm",
)  # fmt: skip
# Newer drivers call it clocks_event_reasons.active and still know this name.
_REASONS_FIELD = "clocks_throttle_reasons.active"


@dataclass(frozen=True, kw_only=True)
class GpuSample:
    """One GPU at one moment; memory in bytes, None for what the driver does not tell.

    `index` is nvidia-smi's; `utilization` runs from 0 to 1; `throttled` are the reasons for which its clocks are below
    what was asked for."""

    index: int
    name: str
    uuid: str = ""
    utilization: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    clock_mhz: int | None = None
    throttled: tuple[str, ...] = ()


def gpu_samples(environ: Mapping[str, str] | None = None) -> tuple[GpuSample, ...]:
    """The GPUs that CUDA would show a process with the environment `environ` (default: this process's), in its order.

    Empty without GPU or driver. May take seconds on a machine whose driver is in trouble."""
    environ = os.environ if environ is None else environ
    try:
        with nvml_session() as nvml:
            return tuple(_sample(nvml, gpu) for gpu in visible_gpus(environ))
    except NvmlError:  # none is left to come from an open session
        return _from_nvidia_smi(environ.get("CUDA_VISIBLE_DEVICES"))


def _sample(nvml: NvmlSession, gpu: LocalGpu) -> GpuSample:
    """A MIG instance has memory of its own; power, temperature and clock are those of its GPU."""
    try:
        handle = nvml.call("nvmlDeviceGetHandleByUUID", gpu.uuid)
        whole = nvml.call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle) if gpu.is_mig else handle
    except NvmlError:  # it has fallen off the bus; the others are still worth a look
        return GpuSample(index=gpu.index, name=gpu.name, uuid=gpu.uuid)
    ask = nvml.ask  # each of them is "not supported" on some GPU
    memory, rates = ask("nvmlDeviceGetMemoryInfo", handle), ask("nvmlDeviceGetUtilizationRates", handle)
    power, limit = ask("nvmlDeviceGetPowerUsage", whole), ask("nvmlDeviceGetEnforcedPowerLimit", whole)
    return GpuSample(
        index=ask("nvmlDeviceGetIndex", whole) or 0,
        name=gpu.name,
        uuid=gpu.uuid,
        utilization=rates.gpu / 100 if rates else None,
        memory_used=int(memory.used) if memory else None,
        memory_total=int(memory.total) if memory else None,
        power_w=None if power is None else power / 1000,
        power_limit_w=None if limit is None else limit / 1000,
        temperature_c=ask("nvmlDeviceGetTemperature", whole, nvml.pynvml.NVML_TEMPERATURE_GPU),
        clock_mhz=ask("nvmlDeviceGetClockInfo", whole, nvml.pynvml.NVML_CLOCK_SM),
        throttled=throttle_reasons(ask("nvmlDeviceGetCurrentClocksThrottleReasons", whole) or 0),
    )


def throttle_reasons(mask: int) -> tuple[str, ...]:
    """The names of the reasons in NVML's bit mask."""
    return tuple(name for bit, name in THROTTLE_REASONS.items() if mask & bit)


def _from_nvidia_smi(visible: str | None) -> tuple[GpuSample, ...]:
    text = _nvidia_smi((*_FIELDS, _REASONS_FIELD)) or _nvidia_smi(_FIELDS)
    samples = parse_nvidia_smi(text)
    gpus = [
        LocalGpu(index=each.index, name=each.name, uuid=each.uuid, memory_total=None, capability=(0, 0))
        for each in samples
    ]
    by_uuid = {each.uuid: each for each in samples}
    return tuple(by_uuid[gpu.uuid] for gpu in select_visible(gpus, visible))


def _nvidia_smi(fields: tuple[str, ...]) -> str:
    """Its table, "" where it is missing, fails or does not know a field."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S, check=False)
        return done.stdout if done.returncode == 0 else ""
    return ""


def parse_nvidia_smi(text: str) -> tuple[GpuSample, ...]:
    """The table of `nvidia-smi --query-gpu=… --format=csv,noheader,nounits`, whose unknown values are "[N/A]"."""
    samples = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) < len(_FIELDS) or not cells[0].isdigit():
            continue
        use, used, total, power, limit, temperature, clock = (_number(cell) for cell in cells[3:10])
        mask = cells[10] if len(cells) > 10 else ""
        samples.append(
            GpuSample(
                index=int(cells[0]),
                uuid=cells[1],
                name=cells[2],
                utilization=None if use is None else use / 100,
                memory_used=_whole(used, _MIB),
                memory_total=_whole(total, _MIB),
                power_w=power,
                power_limit_w=limit,
                temperature_c=_whole(temperature),
                clock_mhz=_whole(clock),
                throttled=throttle_reasons(int(mask, 16)) if mask.startswith("0x") else (),
            )
        )
    return tuple(samples)


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _whole(value: float | None, unit: int = 1) -> int | None:
    return None if value is None else int(value * unit)
