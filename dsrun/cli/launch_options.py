"""The options of `dsrun launch`, given as its own or on a torchrun command line."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from dsrun.errors import UsageError
from dsrun.launch.compat import parse_torchrun, torchrun_words


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """The command line up to the program. `dsrun train` runs with the defaults."""

    nodes: int | None = None
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    hostfile: Path | None = None
    include: str | None = None
    exclude: str | None = None
    nproc: int | None = None
    output: str | None = None
    max_restarts: int | None = None
    hang_timeout: float | None = None
    remedy: bool = True
    warm: bool = True
    rendezvous_timeout: float = 600
    force: bool = False
    dry_run: bool = False
    debug: bool = False
    tied: bool = False

    def argv(self, *names: str) -> list[str]:
        """The options `names`, and those that every node's supervisor needs, as command-line arguments."""
        names = (*names, "output", "max_restarts", "hang_timeout", "rendezvous_timeout", "force", "debug")
        found = []
        for name in names:
            value = getattr(self, name)
            flag = f"--{name.replace('_', '-')}"
            if value is True:
                found.append(flag)
            elif value is not None and value is not False:
                found += [flag, f"{value}"]
        return found + [f"--no-{name}" for name in ("remedy", "warm") if not getattr(self, name)]


def merge_torchrun(options: LaunchOptions, argv: tuple[str, ...]) -> tuple[LaunchOptions, tuple[str, ...], str]:
    """`options` with those of a torchrun line, the program that it starts, and the run ID of its rendezvous."""
    after = torchrun_words(argv)
    if after is None:
        return options, argv, ""
    found = parse_torchrun(after)
    given: dict[str, Any] = {each.name: getattr(found, each.name, None) for each in fields(options)}
    given = {name: value for name, value in given.items() if value is not None}
    for name, value in given.items():
        own = getattr(options, name)
        if own is not None and own != value:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} {own} for dsrun launch, but {value} for torchrun", fix="give it once")
    python = argv[0] if argv[1:2] == ("-m",) else "python"
    program = {(): (python,), ("--module",): (python, "-m"), ("--no-python",): ()}[found.mode]
    return replace(options, **given), (*program, *found.words), found.rdzv_id or ""
