"""DeepSpeed's hostfiles, with --include and --exclude. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dsrun.errors import did_you_mean
from dsrun.launch.refusals import refusal
from dsrun.system.env import is_count, shortened

_LINE = re.compile(r"(?P<name>\S+)\s+slots\s*=\s*(?P<slots>\S+)")
_NAME = re.compile(r"[A-Za-z0-9_.:%@-]+")
_MOST_SLOTS = 1024


@dataclass(frozen=True, kw_only=True)
class SshHost:
    """One machine: `name` as ssh takes it, and the numbers of the GPUs to use.

    `chosen`: they were picked by --include or --exclude, so that the workers must be shown these and no others."""

    name: str
    slots: tuple[int, ...]
    chosen: bool = False

    @property
    def address(self) -> str:
        """The name without the user."""
        return self.name.rpartition("@")[2]


def parse_hostfile(text: str, where: str) -> tuple[SshHost, ...]:
    """The machines of a hostfile: a name and `slots=N` on each line, `#` before remarks.

    `where` is the file's name for messages. Raises UsageError with the line for a machine that stands there twice, for
    missing or wrong slots, and for a file that names none."""
    hosts: dict[str, int] = {}
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.split("#")[0].strip()
        if not entry:
            continue
        name, slots = _entry(entry, f"{where}:{number}")
        if name in hosts:
            raise refusal("slots.twice_in_file", where=f"{where}:{number}", name=name, line=lines[name])
        hosts[name], lines[name] = slots, number
    if not hosts:
        raise refusal("slots.no_machine", where=where)
    return tuple(SshHost(name=name, slots=tuple(range(slots))) for name, slots in hosts.items())


def _entry(entry: str, where: str) -> tuple[str, int]:
    found = _LINE.fullmatch(entry)
    if not found:
        raise refusal("slots.none" if len(entry.split()) == 1 else "slots.no_entry", where=where, entry=entry)
    name, slots = found["name"], found["slots"]
    if not _NAME.fullmatch(name) or name.startswith("-"):  # ssh would take it for an option
        raise refusal("slots.name", where=where, name=name)
    if not (is_count(slots) and 1 <= int(slots) <= _MOST_SLOTS):
        raise refusal("slots.number", where=where, slots=shortened(slots))
    return name, int(slots)


def included(hosts: Sequence[SshHost], choice: str) -> tuple[SshHost, ...]:
    """Only what --include names: "gpu1:0,2@gpu2" are GPUs 0 and 2 of gpu1 and all of gpu2.

    Raises UsageError for machines and slots that the hostfile does not have."""
    wanted = _choices(hosts, choice, "--include")
    return tuple(
        replace(host, slots=wanted[host.address] or host.slots, chosen=bool(wanted[host.address]))
        for host in hosts
        if host.address in wanted
    )


def excluded(hosts: Sequence[SshHost], choice: str) -> tuple[SshHost, ...]:
    """All but what --exclude names, in the same form. Raises UsageError, also when nothing is left."""
    unwanted = _choices(hosts, choice, "--exclude")
    left = []
    for host in hosts:
        chosen = unwanted.get(host.address)
        if chosen is None:
            left.append(host)
        elif slots := tuple(slot for slot in host.slots if chosen and slot not in chosen):
            left.append(replace(host, slots=slots, chosen=True))
    if not left:
        raise refusal("slots.nothing_left", choice=choice)
    return tuple(left)


def _choices(hosts: Sequence[SshHost], choice: str, flag: str) -> dict[str, tuple[int, ...]]:
    """Slots by machine, which is named without the user; () for all."""
    known = {host.address: host for host in hosts}
    found: dict[str, tuple[int, ...]] = {}
    for part in choice.split("@"):
        name, colon, slots = part.strip().partition(":")
        if name not in known:
            hint = did_you_mean(name, known, f"it has {', '.join(list(known)[:5])}")
            raise refusal("slots.unknown_machine", flag=flag, name=name, hint=hint)
        if name in found:
            raise refusal("slots.twice", flag=flag, name=name)
        found[name] = _slots(slots, known[name], flag) if colon else ()
    return found


def _slots(text: str, host: SshHost, flag: str) -> tuple[int, ...]:
    numbers = []
    for word in text.split(","):
        slot = word.strip()
        if not is_count(slot) or int(slot) not in host.slots:
            raise refusal("slots.unknown", flag=flag, name=host.address, slot=shortened(slot), last=len(host.slots) - 1)
        numbers.append(int(slot))
    return tuple(sorted(set(numbers)))
