"""The run folder and its disk: permissions, room, real write speed and inodes, against the checkpoints of the job."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from dsrun.doctor.job.memory_plan import MemoryNeeds, needs
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.errors import UsageError
from dsrun.findings.conditions import first_where
from dsrun.findings.finding import Finding
from dsrun.findings.texts import finding_of, text_of
from dsrun.runs.folder import refuse_unfit
from dsrun.system.files import DISK_FULL, nearest_existing
from dsrun.system.terminal.display import duration

MIB = 2**20
GIB = 2**30
WRITTEN = 64 * MIB
"""Bytes that are written at most to measure the speed."""
WRITING_S = 0.25
"""Seconds after which no further block is written."""
SLOW_SAVE_S = 300.0
"""Seconds of a save from which on saving often costs much of the run."""
SLOW = 30 * MIB
"""Bytes per second below which a file system is slower than one old disk, whatever is written."""
LITTLE = 10 * GIB
"""Free bytes that are little where it is not known what the job writes: checkpoints of a small model."""
FEW_INODES, NO_INODES = 10_000, 100
"""Files that can still be created; a checkpoint has some tens, a cache of data and compiled code thousands."""


def run_folder(target: DoctorTarget) -> Path:
    """The folder that exists already and holds, or will hold, the run's folder: `runs/` of the working folder."""
    return nearest_existing(target.cwd / (target.output or "runs"))


def write_speed(folder: Path, clock: Callable[[], float] = time.monotonic) -> float:
    """Bytes per second that one process writes to disk in `folder`. Raises OSError where it cannot.

    Each block is synced, as each file of a checkpoint is, and random, as some file systems compress. The file has no
    name, so nothing is left of it however this ends (O_TMPFILE, or deleted right after its creation).
    """
    block = os.urandom(8 * MIB)
    written, size = 0, MIB  # a first small one, for disks on which even this takes seconds
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        began = clock()
        while written < WRITTEN:
            file.write(block[:size])
            os.fsync(file.fileno())
            written, size = written + size, min(len(block), WRITTEN - written - size) or size
            if clock() - began >= WRITING_S:
                break
        return written / max(clock() - began, 1e-6)


def _wanted(target: DoctorTarget, planned: MemoryNeeds) -> tuple[int, int]:
    """Bytes of the first checkpoint with the final model, and of all that are kept with one more, as a new one is
    written before an old one is deleted."""
    recipe = target.recipe
    if recipe is not None and recipe.hf.get("save_strategy") == "no":
        return planned.model, planned.model
    keep = recipe.spec.keep if recipe else 1
    return planned.model + planned.checkpoint, planned.model + (keep + 1) * planned.checkpoint


def look_at_space(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    folder = run_folder(target)
    state = machine.statvfs(folder)
    free = state.f_frsize * state.f_bavail
    planned = needs(machine, target)
    first, all_kept = _wanted(target, planned) if planned else (0, 0)
    names = {"folder": folder, "free": free, "first": first, "all_kept": all_kept, "planned": planned, "LITTLE": LITTLE}
    yield from first_where(__file__, "space", **names)


def look_at_speed(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    folder = run_folder(target)
    if not os.access(folder, os.W_OK):
        return  # the check of the run folder says so
    try:
        speed = write_speed(folder)
    except OSError as error:
        fix = text_of("write_speed_fails.free") if error.errno in DISK_FULL else None
        yield finding_of("write_speed_fails", folder=folder, why=error.strerror, fix=fix)
        return
    yield judged(folder, speed, needs(machine, target), max(1, target.nodes))


def judged(folder: Path, speed: float, planned: MemoryNeeds | None, nodes: int) -> Finding:
    """What a speed in bytes per second and node means for the job's checkpoints, which all nodes write together."""
    seconds = planned.checkpoint / nodes / speed if planned else None
    rate = speed / 1e6
    if seconds is None:
        found = finding_of("write_speed", folder=folder, rate=rate)
    else:
        found = finding_of("write_speed.checkpoint", folder=folder, rate=rate, duration=duration(seconds))
    slow_save = seconds is not None and seconds > SLOW_SAVE_S
    if not slow_save and speed >= SLOW:
        return found
    fix = text_of("write_speed_slow.less_often" if slow_save else "write_speed_slow.faster")
    return replace(found, level="warning", code="write_speed_slow", fix=fix)


def look_at_inodes(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    folder = run_folder(target)
    state = machine.statvfs(folder)
    if not state.f_files:  # btrfs and others make inodes as they need them
        return
    limits = {"FEW_INODES": FEW_INODES, "NO_INODES": NO_INODES}
    yield from first_where(__file__, "inodes", folder=folder, left=state.f_favail, **limits)


def look_at_run_folder(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    """What would keep a run from starting in its folder, `runs/` of the working folder by default."""
    folder = target.output or target.cwd / "runs"
    path = folder if folder.is_absolute() else target.cwd / folder
    try:
        refuse_unfit(path, force=target.output is None or bool(target.recipe and target.recipe.spec.force))
    except UsageError as error:
        yield Finding(level="error", code="run_folder", message=error.message, fix=error.fix or "")
        return
    place = machine.mount(nearest_existing(path))
    yield from first_where(__file__, "run_folder", path=path, place=place, nodes=target.nodes)
