"""How an option of a SLURM job is declared: once, with everything that the rest is derived from."""

from __future__ import annotations

from dataclasses import field
from typing import Any

GROUPS = ("job", "resources", "queue", "interruptions", "environment", "container", "network")


def option(
    default: Any,
    help: str,
    *,
    group: str,
    sbatch: str | None = None,
    flag: str | None = None,
    aliases: tuple[str, ...] = (),
    short: str | None = None,
    metavar: str | None = None,
    choices: tuple[str, ...] | None = None,
    least: int | None = None,
) -> Any:
    """Declare one option.

    `sbatch` is the long option of sbatch that gets the value as it stands. `flag` is its name on the command line
    and in run.yaml where that is not the field's; `aliases` are further names there, `short` is sbatch's own
    letter. `least` bounds a number, included.
    """
    if group not in GROUPS:
        raise ValueError(f"{group!r} is not one of {GROUPS}")
    meta = {
        "help": help,
        "group": group,
        "sbatch": sbatch,
        "flag": flag,
        "aliases": aliases,
        "short": short,
        "metavar": metavar,
        "choices": choices,
        "least": least,
    }
    return field(default=default, metadata=meta)
