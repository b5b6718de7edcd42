"""On which file system a folder of a machine is."""

from __future__ import annotations

from pathlib import Path

from dsrun.doctor.machine_facts import MachineFacts
from dsrun.system.mounts import MountPoint, mount_in


def mount_of(machine: MachineFacts, path: Path) -> MountPoint | None:
    """The file system that holds `path`, links followed; None where /proc does not tell."""
    return mount_in(machine.text("/proc/self/mounts") or "", path)
