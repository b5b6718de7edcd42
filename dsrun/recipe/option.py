"""How an option is declared: a dataclass field whose metadata carries what its flag needs."""

from __future__ import annotations

from dataclasses import field
from typing import Any

GROUPS = ("model", "zero", "batch", "data", "lora", "survive", "run")


def option(
    default: Any,
    help: str,
    *,
    group: str,
    aliases: tuple[str, ...] = (),
    metavar: str | None = None,
    choices: tuple[str, ...] | None = None,
    example_scripts: bool = False,
) -> Any:
    """Declare one option.

    `aliases` are further spellings taken on the command line and in run.yaml. `example_scripts` marks a flag
    that exists so that command lines of the Transformers example scripts run unchanged.
    """
    if group not in GROUPS:
        raise ValueError(f"{group!r} is not one of {GROUPS}")
    meta = {
        "help": help,
        "group": group,
        "aliases": aliases,
        "metavar": metavar,
        "choices": choices,
        "example_scripts": example_scripts,
    }
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=meta)
    return field(default=default, metadata=meta)
