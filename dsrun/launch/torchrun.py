"""torchrun's command line, for `dsrun launch -- torchrun …`: what it says of the machines, and its program. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from dsrun.errors import UsageError

MODULE = "torch.distributed.run"
_PYTHON = re.compile(r"python(?:3(?:\.\d+)?)?")
# Options that count here, and those about which the supervisor has its own mind or nothing to do.
_VALUED = frozenset(
    {"nnodes", "node_rank", "nproc_per_node", "master_addr", "master_port", "max_restarts"}
    | {"rdzv_backend", "rdzv_endpoint", "rdzv_id"}
)
_PASSED_OVER = frozenset(
    {"rdzv_conf", "monitor_interval", "start_method", "role", "local_addr", "log_dir", "redirects", "tee"}
    | {"logs_specs", "event_log_handler", "local_ranks_filter", "signals_to_handle", "shutdown_timeout"}
    | {"duplicate_stdout_filters", "duplicate_stderr_filters"}
)
_SWITCHES = {"standalone": "standalone", "m": "module", "module": "module", "no_python": "no_python"}
_SHORT = {"r": "redirects", "t": "tee", "m": "m"}
_BACKENDS = ("c10d", "static")


@dataclass(frozen=True, kw_only=True)
class Torchrun:
    """What a torchrun command line says; None for what it does not say. `mode` and `words` are its program's."""

    nodes: int | None
    node_rank: int | None
    nproc: int | None
    master_addr: str | None
    master_port: int | None
    max_restarts: int | None
    rdzv_id: str | None
    mode: tuple[str, ...]
    words: tuple[str, ...]


def torchrun_words(words: Sequence[str]) -> tuple[str, ...] | None:
    """What follows `torchrun` or `python -m torch.distributed.run`; None for another program."""
    first, *rest = words
    name = PurePosixPath(first).name
    if name == "torchrun":
        return tuple(rest)
    if _PYTHON.fullmatch(name) and rest[:2] == ["-m", MODULE]:
        return tuple(rest[2:])
    return None


def parse_torchrun(words: Sequence[str]) -> Torchrun:
    """Read the options up to the program. Raises UsageError for those that are none, or that cannot be followed."""
    values: dict[str, str] = {}
    mode: list[str] = []
    position = 0
    while position < len(words) and words[position].startswith("-"):
        word = words[position]
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
        if name not in _VALUED | _PASSED_OVER:
            raise UsageError(
                f"torchrun {word}: dsrun launch does not know this option",
                fix="-- before the program, or remove it",
            )
        if not equals:
            if position == len(words):
                raise UsageError(f"torchrun {word}: its value is missing", fix=f"{word}=VALUE")
            value = words[position]
            position += 1
        values[name] = value
    if position >= len(words):
        raise UsageError("torchrun: no program is named", fix="-- torchrun --nproc-per-node 8 my_train.py")
    return _read(values, tuple(mode), words[position:])


def _read(values: dict[str, str], mode: tuple[str, ...], program: Sequence[str]) -> Torchrun:
    backend = values.get("rdzv_backend") or "c10d"
    if backend not in _BACKENDS:
        raise UsageError(f"torchrun --rdzv-backend {backend}: dsrun launch has the nodes meet itself", fix="c10d")
    host, port = _endpoint(values.get("rdzv_endpoint", ""))
    nproc = values.get("nproc_per_node")
    return Torchrun(
        nodes=_integer(values, "nnodes"),
        node_rank=_integer(values, "node_rank"),
        nproc=None if nproc in ("auto", "gpu") else _integer(values, "nproc_per_node"),
        master_addr=values.get("master_addr") or host,
        master_port=_integer(values, "master_port") or port,
        max_restarts=_integer(values, "max_restarts"),
        rdzv_id=values.get("rdzv_id"),
        mode=mode,
        # torchrun makes one $ of two, and so will the one that is started with these words.
        words=(program[0], *(word.replace("$$", "$") for word in program[1:])),
    )


def _integer(values: dict[str, str], name: str) -> int | None:
    text = values.get(name)
    if text is None:
        return None
    flag = f"--{name.replace('_', '-')}"
    if not (text.isascii() and text.isdigit()):
        hint = "a range of nodes cannot be supervised: name one number" if ":" in text else f"{flag}=N"
        raise UsageError(f"torchrun {flag} {text} is not a number", fix=hint)
    return int(text)


def _endpoint(text: str) -> tuple[str | None, int | None]:
    """ "host:port", "[::1]:port", "host"."""
    if not text:
        return None, None
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        return text.strip("[]"), None
    if not (port.isascii() and port.isdigit()):
        raise UsageError(f"torchrun --rdzv-endpoint {text} is not HOST:PORT", fix="--rdzv-endpoint=HOST:29500")
    return host.strip("[]"), int(port)
