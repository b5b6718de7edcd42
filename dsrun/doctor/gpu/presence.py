"""Whether every NVIDIA GPU of this machine can be reached: driver, NVML, PCI bus, fabric manager."""

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dsrun.doctor.gpu import nvml
from dsrun.doctor.gpu.nvml import FABRIC_COMPLETED, GpuState, of_gpus
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.findings.finding import Finding, finding_of, first_where, text_of
from dsrun.machine.gpus import LocalGpu, select_visible
from dsrun.messages import joined
from dsrun.system.terminal.display import counted

NVIDIA = "0x10de"
DISPLAY = "0x03"
"""The first byte of the PCI class of GPUs: VGA (0x0300) or 3D controllers (0x0302)."""
NVSWITCH = "0x0680"
"""The PCI class of NVSwitches: bridges of another kind."""
GONE = b"\xff\xff"
"""What configuration space reads as, where no device answers (PCI Local Bus Specification 3.0, 6.2.1)."""
FABRIC_MANAGER = "nv-fabricmanage"
"""The process, in the 15 letters that the kernel keeps of its name."""


class PciDevice(NamedTuple):
    """A PCI device of NVIDIA: its address ("0000:3b:00.0"), its class, and whether it still answers."""

    address: str
    kind: str
    answers: bool


def devices(machine: MachineFacts) -> list[PciDevice]:
    """NVIDIA's devices on the PCI bus. A container and a batch job see those of the whole machine."""
    found = []
    for folder in _entries(machine.path("/sys/bus/pci/devices")):
        if machine.text(f"/sys/bus/pci/devices/{folder.name}/vendor") != NVIDIA:
            continue
        kind = machine.text(f"/sys/bus/pci/devices/{folder.name}/class") or ""
        found.append(PciDevice(folder.name, kind, not _starts_with(folder / "config", GONE)))
    return found


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _starts_with(file: Path, head: bytes) -> bool:
    try:
        with file.open("rb") as opened:
            return opened.read(len(head)) == head
    except OSError:
        return False


def look_at_driver(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    on_bus = [each for each in devices(machine) if each.kind.startswith(DISPLAY)]
    version = machine.text("/proc/driver/nvidia/version")
    told = machine.nvml()
    if not on_bus and version is None and not told.gpus:
        return
    release = re.search(r"Kernel Module(?: for \S+)?\s+(\d[\d.]*)", version or "")
    names = {"told": told, "loaded": version is not None, "release": release, "count": len(on_bus), "nvml": nvml}
    counts = {"gpus": counted(len(told.gpus), "GPU"), "on_bus": counted(len(on_bus), "NVIDIA GPU")}
    yield from first_where(__file__, "driver", **names, **counts)


def look_at_bus(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    told = machine.nvml()
    on_bus = [each for each in devices(machine) if each.kind.startswith(DISPLAY)]
    gone = {each.address for each in on_bus if not each.answers}
    if told.error is None and told.gpus:
        seen = {each.bus for each in told.gpus}
        gone |= {address for address, minor in _minors(machine) if address not in seen and _is_ours(machine, minor)}
    if gone or told.lost:
        names = [text_of("gpu_bus_lost.at", bus=each) for each in sorted(gone)]
        names = names or [text_of("gpu_bus_lost.index", index=index) for index in told.lost]
        yield finding_of("gpu_bus_lost", names=joined(", ", names))
    elif told.gpus:
        yield finding_of("gpu_bus", gpus=counted(len(told.gpus), "GPU"))


def _minors(machine: MachineFacts) -> Iterator[tuple[str, int]]:
    """The GPUs that the driver has begun with: PCI address, and the number N of /dev/nvidiaN."""
    for folder in _entries(machine.path("/proc/driver/nvidia/gpus")):
        text = machine.text(f"/proc/driver/nvidia/gpus/{folder.name}/information") or ""
        if found := re.search(r"Device Minor:\s*(\d+)", text):
            yield folder.name.lower(), int(found[1])


def _is_ours(machine: MachineFacts, minor: int) -> bool:
    """Whether this process may use a GPU: batch systems and containers keep those of others away by its device file."""
    try:
        os.close(os.open(machine.path(f"/dev/nvidia{minor}"), os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.EPERM, errno.EACCES, errno.ENXIO)
    return True


def look_at_fabric(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    gpus = machine.nvml().gpus
    waiting = [each for each in gpus if each.fabric is not None and each.fabric != FABRIC_COMPLETED]
    is_switched = gpus and any(each.kind.startswith(NVSWITCH) for each in devices(machine))
    running = _runs(machine, FABRIC_MANAGER) if is_switched else None
    names = {"registered": any(each.fabric for each in gpus), "running": running, "of_gpus": of_gpus}
    yield from first_where(__file__, "fabric", waiting=waiting, **names)


def _runs(machine: MachineFacts, name: str) -> bool | None:
    """Whether a process of this name runs; None in a container, which does not see the machine's processes."""
    if machine.text("/proc/1/comm") not in ("systemd", "init"):
        return None
    comms = (machine.text(f"/proc/{each.name}/comm") for each in _entries(machine.path("/proc")) if each.name.isdigit())
    return name in comms


def usable(machine: MachineFacts) -> tuple[GpuState, ...]:
    """The GPUs that a run here would take: those that CUDA_VISIBLE_DEVICES leaves."""
    states = {each.uuid or f"GPU {each.index}": each for each in machine.nvml().gpus}
    gpus = [
        LocalGpu(index=place, name=state.name, uuid=uuid, memory_total=None, capability=(0, 0))
        for place, (uuid, state) in enumerate(states.items())
    ]
    return tuple(states[each.uuid] for each in select_visible(gpus, machine.environ.get("CUDA_VISIBLE_DEVICES")))
