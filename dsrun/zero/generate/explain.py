"""What each key of a configuration does, and why it has this value."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dsrun.zero.generate.blocks import HardwareFacts
from dsrun.zero.generate.check import check_config
from dsrun.zero.generate.config import build, nested
from dsrun.zero.generate.spec import ZeroSpec

VERSION = 1

UNKNOWN = "see DeepSpeed's documentation"


@dataclass(frozen=True, kw_only=True)
class Explained:
    """One key of the configuration: its path, its value, what it does, and why it is this value."""

    key: str
    value: Any
    does: str
    why: str


@cache
def meanings() -> dict[str, str]:
    """What the keys do, by their paths."""
    text = Path(__file__).parents[1].joinpath("key_meanings.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def explain(spec: ZeroSpec, facts: HardwareFacts) -> list[Explained]:
    """Every key of `generate(spec, facts=facts)` in its order. Raises UsageError as that does."""
    flat = build(spec, facts)
    check_config(nested(flat), spec, facts)
    return [
        Explained(key=path, value=reasoned.value, does=meanings().get(path, UNKNOWN), why=reasoned.why)
        for path, reasoned in flat.items()
    ]


def as_text(rows: Sequence[Explained]) -> str:
    """The explanation for a reader: three lines a key."""
    return "\n".join(
        f"{row.key} = {json.dumps(row.value, ensure_ascii=False)}\n    {row.does}\n    because: {row.why}"
        for row in rows
    )


def as_json(rows: Sequence[Explained]) -> str:
    """The explanation for a program: {"version": 1, "keys": [{"key", "value", "does", "why"}, …]}."""
    return json.dumps(
        {"version": VERSION, "keys": [asdict(row) for row in rows]}, indent=2, ensure_ascii=False
    )
