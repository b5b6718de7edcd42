"""Xid errors that the NVIDIA driver wrote into the kernel log since this machine started."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dsrun.datafiles import toml_beside
from dsrun.doctor.machine_facts import DoctorTarget, MachineFacts
from dsrun.findings.finding import Finding, Level, finding_of, text_of
from dsrun.messages import Message
from dsrun.system.terminal.display import printable

RECENT_S = 24 * 3600.0
"""Seconds after which a fault of a GPU that was left running is a warning: it may have been reset since."""
RECORD = 8192
"""Bytes of the longest record of /dev/kmsg (CONSOLE_EXT_LOG_MAX in the kernel's printk)."""
SHOWN = 160
"""Letters of a log line that a message quotes."""
_TOLD_BY_LINE = (154,)
"""Xids that mean nothing without the rest of their line."""

_FACTS = toml_beside(__file__, "xids.toml")
_KMSG = re.compile(r"^\d+,\d+,(?P<microseconds>\d+),[^;]*;(?P<text>.*)")
_PRINTED = re.compile(r"^\[\s*(?P<seconds>\d+\.\d+)\]\s*(?P<text>.*)")  # dmesg, journalctl -o short-monotonic
_SXID = re.compile(r"SXid \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)\): (?P<number>\d+), Fatal\b")
"""An error of an NVSwitch that ends the jobs on its links (Fabric Manager user guide, "Fatal NVSwitch SXid Errors")."""
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)\): (?P<number>\d+)")


class XidEvent(NamedTuple):
    """One Xid: when, in seconds after this machine started, of which GPU ("0000:3b:00"), and the line that says so."""

    seconds: float
    bus: str
    number: int
    line: str


def meaning(number: int) -> tuple[Level, Message, Message]:
    """How bad an Xid is, what it means, and what to do; one that the table has not is a warning."""
    row = _FACTS["xid"].get(str(number))
    if row is None:
        return "warning", text_of("xid.unknown"), text_of("xid.look_up")
    return row["level"], Message(row["means"]), Message(_FACTS["fix"][row["remedy"]])


def kernel_lines(machine: MachineFacts) -> list[str]:
    """The kernel's messages, each with its time; none where this user may not read them."""
    with suppress(OSError):
        return _records(machine.path("/dev/kmsg"))
    journal = ["journalctl", "--dmesg", "--boot", "--no-pager", "--quiet", "--output=short-monotonic"]
    # A journal that may not be read is empty, as the kernel log of a machine that runs never is.
    return next((text.splitlines() for each in (["dmesg"], journal) if (text := machine.answer(*each))), [])


def _records(kmsg: Path) -> list[str]:
    """All of /dev/kmsg, which gives one record a read, and EPIPE for one that was overwritten meanwhile."""
    lines: list[str] = []
    opened = os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                record = os.read(opened, RECORD)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue
            if not record:
                break
            lines += record.decode("utf-8", "replace").splitlines()
    finally:
        os.close(opened)
    return lines


def xids(lines: Iterable[str], pattern: re.Pattern[str] = _XID) -> Iterator[XidEvent]:
    """The Xids among kernel messages; with another pattern, those of NVSwitches."""
    for line in lines:
        found = pattern.search(line)
        if not found:
            continue
        seconds = 0.0
        text = line
        if head := _KMSG.match(line):
            seconds, text = int(head["microseconds"]) / 1e6, head["text"]
        elif head := _PRINTED.match(line):
            seconds, text = float(head["seconds"]), head["text"]
        text = text[max(0, text.find("NVRM:")) :] if pattern is _XID else text
        yield XidEvent(seconds, found["bus"].lower().partition(".")[0], int(found["number"]), printable(text[:SHOWN]))


def look(machine: MachineFacts, target: DoctorTarget) -> Iterator[Finding]:
    gpus = machine.nvml().gpus
    if not gpus and not machine.path("/proc/driver/nvidia").exists():
        return
    lines = kernel_lines(machine)
    if not lines:
        return
    found = list(xids(lines))
    now = float((machine.text("/proc/uptime") or "0").split()[0])
    names = {each.bus.partition(".")[0]: str(each) for each in gpus}
    for (bus, number), count in Counter((each.bus, each.number) for each in found).items():
        last = [each for each in found if (each.bus, each.number) == (bus, number)][-1]
        age = max(0.0, now - last.seconds)
        yield _finding(last, names.get(bus) or text_of("xid.gpu", bus=bus), count, age)
    fatal = {(each.bus, each.number): each for each in xids(lines, _SXID)}
    for (bus, number), last in fatal.items():
        age = max(0.0, now - last.seconds)
        message = text_of("xid.switch", bus=bus, number=number, age=_ago(age))
        level: Level = "warning" if age > RECENT_S else "error"
        fix = Message(_FACTS["fix"]["link"])
        yield Finding(level=level, code=f"xid_switch_{number}", message=message, fix=fix)
    if not found and not fatal:
        yield finding_of("xid")


def _finding(last: XidEvent, gpu: str, count: int, age: float) -> Finding:
    level, means, fix = meaning(last.number)
    level = "warning" if level == "error" and age > RECENT_S else level
    values = {"gpu": gpu, "number": last.number, "means": means, "count": count, "age": _ago(age)}
    message = text_of("xid.several" if count > 1 else "xid.once", **values)
    if last.number in _TOLD_BY_LINE or str(last.number) not in _FACTS["xid"]:
        message = text_of("xid.line", what=message, line=last.line)
    return Finding(level=level, code=f"xid_{last.number}", message=message, fix=fix)


def _ago(seconds: float) -> Message:
    lengths = {"days": 86400, "hours": 3600, "minutes": 60}
    unit = next((name for name, length in lengths.items() if seconds >= 2 * length), "seconds")
    return text_of(f"xid_ago.{unit}", **{unit: seconds / lengths.get(unit, 1)})
