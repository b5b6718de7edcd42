"""Whether this machine's clock is right: files of other machines would seem to come from the future, and logs out of
order."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dsrun.doctor.host.storage import run_folder
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.findings.conditions import first_where
from dsrun.findings.finding import Finding
from dsrun.findings.texts import finding_of

MOST_S = 2.0
"""Seconds by which clocks may differ: make and ninja compare times of files in whole seconds."""
_OFFSET = re.compile(r"^System time\s*:\s*([\d.]+) seconds (slow|fast)", re.MULTILINE)
_LEAP = re.compile(r"^Leap status\s*:\s*(.+?)\s*$", re.MULTILINE)


def look(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
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
