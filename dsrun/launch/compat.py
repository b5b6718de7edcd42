"""Inputs of other launchers: DeepSpeed's hostfiles with --include and --exclude, and torchrun's command line. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from dsrun.errors import UsageError, did_you_mean
from dsrun.launch.launchers import PYTHON
from dsrun.system.env import is_count, shortened

_LINE = re.compile(r"(?P<name>\S+)\s+slots\s*=\s*(?P<slots>\S+)")
_NAME = re.compile(r"[A-Za-z0-9_.:%@-]+")
_MOST_SLOTS = 1024
_FORM = "one `name slots=8` a line"


@dataclass(frozen=True, kw_only=True)
class SshHost:
    """One machine: `name` as ssh takes it, and the numbers of the GPUs to use.

    `chosen`: they were picked by --include or --exclude, so that the workers must be shown these and no others.
    """

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
    missing or wrong slots, and for a file that names none.
    """
    hosts: dict[str, int] = {}
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.split("#")[0].strip()
        if not entry:
            continue
        name, slots = _entry(entry, f"{where}:{number}")
        if name in hosts:
            raise UsageError(
                f"{where}:{number}: {name} is already in line {lines[name]}",
                fix="one line per machine, with all its slots",
            )
        hosts[name], lines[name] = slots, number
    if not hosts:
        raise UsageError(f"{where}: names no machine", fix=_FORM)
    return tuple(SshHost(name=name, slots=tuple(range(slots))) for name, slots in hosts.items())


def _entry(entry: str, where: str) -> tuple[str, int]:
    found = _LINE.fullmatch(entry)
    if not found:
        missing = len(entry.split()) == 1
        what = f"{entry} has no slots" if missing else f"{entry!r} is not a machine with its slots"
        raise UsageError(f"{where}: {what}", fix=f"{entry} slots=8, for 8 GPUs" if missing else _FORM)
    name, slots = found["name"], found["slots"]
    if not _NAME.fullmatch(name) or name.startswith("-"):  # ssh would take it for an option
        raise UsageError(f"{where}: {name!r} is not a machine name", fix=_FORM)
    if not (is_count(slots) and 1 <= int(slots) <= _MOST_SLOTS):
        raise UsageError(f"{where}: slots={shortened(slots)} is not a number of GPUs", fix=_FORM)
    return name, int(slots)


def included(hosts: Sequence[SshHost], choice: str) -> tuple[SshHost, ...]:
    """Only what --include names: "gpu1:0,2@gpu2" are GPUs 0 and 2 of gpu1 and all of gpu2.

    Raises UsageError for machines and slots that the hostfile does not have.
    """
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
        raise UsageError(f"--exclude {choice} leaves no machine", fix="exclude less")
    return tuple(left)


def _choices(hosts: Sequence[SshHost], choice: str, flag: str) -> dict[str, tuple[int, ...]]:
    """Slots by machine, which is named without the user; () for all."""
    known = {host.address: host for host in hosts}
    found: dict[str, tuple[int, ...]] = {}
    for part in choice.split("@"):
        name, colon, slots = part.strip().partition(":")
        if name not in known:
            hint = did_you_mean(name, known, f"it has {', '.join(list(known)[:5])}")
            raise UsageError(f"{flag}: the hostfile has no machine {name!r}", fix=hint)
        if name in found:
            raise UsageError(f"{flag}: {name} is given twice", fix=f"{name}:0,1")
        found[name] = _slots(slots, known[name], flag) if colon else ()
    return found


def _slots(text: str, host: SshHost, flag: str) -> tuple[int, ...]:
    numbers = []
    for word in text.split(","):
        slot = word.strip()
        if not is_count(slot) or int(slot) not in host.slots:
            raise UsageError(
                f"{flag}: {host.address} has no slot {shortened(slot)!r}", fix=f"it has 0 to {len(host.slots) - 1}"
            )
        numbers.append(int(slot))
    return tuple(sorted(set(numbers)))


MODULE = "torch.distributed.run"
# Options that count here, and those that the supervisor ignores.
_VALUED = frozenset(
    {"nnodes", "node_rank", "nproc_per_node", "master_addr", "master_port", "max_restarts"}
    | {"rdzv_backend", "rdzv_endpoint", "rdzv_id"}
)
_IGNORED = frozenset(
    {"rdzv_conf", "monitor_interval", "start_method", "role", "local_addr", "log_dir", "redirects", "tee"}
    | {"logs_specs", "event_log_handler", "local_ranks_filter", "signals_to_handle", "shutdown_timeout"}
    | {"duplicate_stdout_filters", "duplicate_stderr_filters"}
)
_SWITCHES = {"standalone": "standalone", "m": "module", "module": "module", "no_python": "no_python"}
_SHORT = {"r": "redirects", "t": "tee", "m": "m"}
_BACKENDS = ("c10d", "static")


@dataclass(frozen=True, kw_only=True)
class TorchrunLine:
    """What a torchrun command line says; None for what it does not say. `mode` and `program` are its program's."""

    nodes: int | None
    node_rank: int | None
    nproc: int | None
    master_addr: str | None
    master_port: int | None
    max_restarts: int | None
    rdzv_id: str | None
    mode: tuple[str, ...]
    program: tuple[str, ...]


def torchrun_arguments(argv: Sequence[str]) -> tuple[str, ...] | None:
    """What follows `torchrun` or `python -m torch.distributed.run`; None for another program."""
    first, *rest = argv
    name = PurePosixPath(first).name
    if name == "torchrun":
        return tuple(rest)
    if PYTHON.fullmatch(name) and rest[:2] == ["-m", MODULE]:
        return tuple(rest[2:])
    return None


def parse_torchrun(argv: Sequence[str]) -> TorchrunLine:
    """Read the options up to the program. Raises UsageError for those that are none, or that cannot be followed."""
    values: dict[str, str] = {}
    mode: list[str] = []
    position = 0
    while position < len(argv) and argv[position].startswith("-"):
        word = argv[position]
        position += 1
        if word == "--":
            break
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        name = _SHORT.get(name, name) if not word.startswith("--") else name
        if name in _SWITCHES:
            if _SWITCHES[name] != "standalone":
                mode.append(f"--{_SWITCHES[name].replace('_', '-')}")
            continue
        if name not in _VALUED | _IGNORED:
            raise UsageError(
                f"torchrun {word}: dsrun launch does not know this option", fix="-- before the program, or remove it"
            )
        if not equals:
            if position == len(argv):
                raise UsageError(f"torchrun {word}: its value is missing", fix=f"{word}=VALUE")
            value = argv[position]
            position += 1
        values[name] = value
    if position >= len(argv):
        raise UsageError("torchrun: no program is named", fix="-- torchrun --nproc-per-node 8 my_train.py")
    return _torchrun(values, tuple(mode), argv[position:])


def _torchrun(values: dict[str, str], mode: tuple[str, ...], program: Sequence[str]) -> TorchrunLine:
    backend = values.get("rdzv_backend") or "c10d"
    if backend not in _BACKENDS:
        raise UsageError(f"torchrun --rdzv-backend {backend}: dsrun launch has the nodes meet itself", fix="c10d")
    host, port = _endpoint(values.get("rdzv_endpoint", ""))
    nproc = values.get("nproc_per_node")
    return TorchrunLine(
        nodes=_integer(values, "nnodes"),
        node_rank=_integer(values, "node_rank"),
        nproc=None if nproc in ("auto", "gpu") else _integer(values, "nproc_per_node"),
        master_addr=values.get("master_addr") or host,
        master_port=_integer(values, "master_port") or port,
        max_restarts=_integer(values, "max_restarts"),
        rdzv_id=values.get("rdzv_id"),
        mode=mode,
        # torchrun makes one $ of two, and so will the one that is started with these words.
        program=tuple(
            word if at == 0 and "--no-python" in mode else word.replace("$$", "$") for at, word in enumerate(program)
        ),
    )


def _integer(values: dict[str, str], name: str) -> int | None:
    text = values.get(name)
    if text is None:
        return None
    flag = f"--{name.replace('_', '-')}"
    if not is_count(text):
        hint = "a range of nodes cannot be supervised: name one number" if ":" in text else f"{flag}=N"
        raise UsageError(f"torchrun {flag} {shortened(text)} is not a number", fix=hint)
    return int(text)


def _endpoint(text: str) -> tuple[str | None, int | None]:
    """ "host:port", "[::1]:port", "host"."""
    if not text:
        return None, None
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        return text.strip("[]"), None
    if not is_count(port):
        raise UsageError(
            f"torchrun --rdzv-endpoint {shortened(text)} is not HOST:PORT", fix="--rdzv-endpoint=HOST:29500"
        )
    return host.strip("[]"), int(port)
