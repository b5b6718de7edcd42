"""The run folder and its disk: permissions, room, real write speed, inodes and quota, against the checkpoints of the
job; and the clock of its file system and of this machine: files of other machines would seem to come from the future,
and logs out of order."""

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from dsrun.doctor.job.settings import MemoryNeeds, needs
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.errors import DsrunError, UsageError
from dsrun.findings.finding import Finding, finding_of, findings_where, first_where, text_of
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
    name, so nothing is left of it however this ends (O_TMPFILE, or deleted right after its creation)."""
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


KIB = 1024

# A row of quota(1) and `lfs quota`: used blocks of 1 KiB, soft and hard limit, time of grace, and the same of files. A
# star marks what is above its soft limit, brackets a number that lfs could not ask all servers for.
_NUMBER = r"\[?(\d+)\]?(\*)?"
_ROW = re.compile(rf"(\S+)\s+{_NUMBER}\s+(\d+)\s+(\d+)\s+(\S+)\s+{_NUMBER}\s+(\d+)\s+(\d+)")


class DiskQuota(NamedTuple):
    """What is used and allowed, in bytes and files; 0 is no limit."""

    used: int
    soft: int
    hard: int
    files: int
    files_soft: int
    files_hard: int

    @property
    def limit(self) -> int:
        return self.hard or self.soft

    @property
    def files_limit(self) -> int:
        return self.files_hard or self.files_soft


def parse_quota(text: str) -> list[DiskQuota]:
    """The rows of quota(1) or `lfs quota`; a long name stands on a line of its own before its numbers."""
    found = []
    for match in _ROW.finditer(text):
        blocks, _, soft, hard, _, files, _, files_soft, files_hard = match.groups()[1:]
        used, least, most = int(blocks) * KIB, int(soft) * KIB, int(hard) * KIB
        found.append(DiskQuota(used, least, most, int(files), int(files_soft), int(files_hard)))
    return [each for each in found if each.limit or each.files_limit]


def look_at_quota(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    folder = run_folder(target)
    mount = machine.mount(folder)
    if mount is None:
        return
    point = str(mount.point)
    texts = [_output(machine, command) for command in _commands(machine, mount.kind, point)]
    found = [quota for text in texts for quota in parse_quota(text)]
    planned = needs(machine, target)
    names = {"point": point, "wanted": planned.checkpoint + planned.model if planned else 0, "NO_INODES": NO_INODES}
    problems = [each for quota in found for each in findings_where(__file__, "quota", quota=quota, **names)]
    yield from problems
    if found and not problems:
        left = min((each.limit - each.used for each in found if each.limit), default=None)
        yield from first_where(__file__, "within", point=point, left=left)


def _commands(machine: MachineFacts, kind: str, point: str) -> list[list[str]]:
    if kind != "lustre":
        return [["quota", "--no-wrap", "--raw-grace", "--filesystem-list", point]]
    names = {option: (machine.answer("id", f"{option}n") or "").strip() for option in ("-u", "-g")}
    return [["lfs", "quota", "-q", option, name, point] for option, name in names.items()]


def _output(machine: MachineFacts, command: Sequence[str]) -> str:
    """The output; quota(1) fails where a limit is exceeded, and prints it all the same."""
    try:
        return machine.run(command).stdout
    except DsrunError:
        return ""


MOST_S = 2.0
"""Seconds by which clocks may differ: make and ninja compare times of files in whole seconds."""
_OFFSET = re.compile(r"^System time\s*:\s*([\d.]+) seconds (slow|fast)", re.MULTILINE)
_LEAP = re.compile(r"^Leap status\s*:\s*(.+?)\s*$", re.MULTILINE)


def look_at_clock(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    away = _behind_server(machine, run_folder(target))
    if away is not None and abs(away) > MOST_S:
        yield finding_of("clock_differs.behind" if away > 0 else "clock_differs.ahead", seconds=abs(away))
        return
    told = _chrony(machine) or _timedatectl(machine)
    if told:
        yield told
    elif away is not None:
        yield finding_of("clock.agrees")


def _behind_server(machine: MachineFacts, folder: Path) -> float | None:
    """Seconds by which a network file system's clock, which stamps a new file, is ahead of ours; None for others."""
    mount = machine.mount(folder)
    if mount is None or not mount.shared:
        return None
    with suppress(OSError), tempfile.TemporaryFile(dir=folder) as file:
        before = machine.now()
        file.write(b"\0")
        file.flush()
        stamped = Path(f"/proc/self/fd/{file.fileno()}").stat().st_mtime
        after = machine.now()
        return min(stamped - before, 0.0) if stamped < before else max(stamped - after, 0.0)
    return None


def _chrony(machine: MachineFacts) -> Finding | None:
    text = machine.answer("chronyc", "-n", "tracking") or ""
    leap, offset = _LEAP.search(text), _OFFSET.search(text)
    if not leap:
        return None
    names = {"seconds": float(offset[1]) if offset else 0.0, "slow": offset is not None and offset[2] == "slow"}
    return next(first_where(__file__, "clock", leap=leap[1], MOST_S=MOST_S, **names))


def _timedatectl(machine: MachineFacts) -> Finding | None:
    text = machine.answer("timedatectl", "show", "--property=NTPSynchronized", "--value") or ""
    keys = {"yes": "clock", "no": "clock_unsynchronised"}
    return finding_of(keys[text.strip()]) if text.strip() in keys else None
