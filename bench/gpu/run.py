"""Runs blocks one after another within a time for all: whatever becomes of one, the next is run, and each is a row."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from bench.gpu.blocks import Block
from bench.processes import LimitedProcess, locks_of

GRACE_S = 6.0
MISSED = ("MISSED", "NO")
"""How the last line of a benchmark ends that ran and exceeded a limit."""
LAST_CHARACTERS = 300
TOLD = "=> "
"""How a line of a block's output begins that belongs into the table."""
TOLD_CHARACTERS = 700
MISSING = 4
"""The exit code of a block that needs what is not installed here."""
CLOSING_S = 4.0
"""Left of the time for all, when the last block is ended."""

Status = Literal["ok", "missed", "failed", "timeout", "skipped", "to come"]
BAD = ("failed", "timeout", "missed")


@dataclass(frozen=True)
class Row:
    """What became of a block: `missed` where all ran and a goal was not reached, `skipped` where no time was left or
    something is not installed. `figures` is what it wrote, `detail` what it told, or the last line of its output."""

    name: str
    status: Status
    seconds: float = 0.0
    detail: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def run_blocks(
    blocks: Sequence[Block], logs: Path, *, budget_s: float | None, done: Callable[[list[Row]], None]
) -> list[Row]:
    """Run them, within `budget_s` seconds if given; `done` gets all rows, those to come too, as soon as one is new."""
    rows = [Row(block.name, "to come") for block in blocks]
    began = time.monotonic()
    for place, block in enumerate(blocks):
        left = float("inf") if budget_s is None else budget_s - (time.monotonic() - began)
        if left < max(block.least_s, CLOSING_S + 1):
            rows[place] = Row(block.name, "skipped", detail=f"{left:.0f} s were left of {budget_s:.0f}")
        else:
            short = replace(block, limit_s=int(min(block.limit_s, left - CLOSING_S)))
            rows[place] = run_block(short, logs / f"{block.name.replace(', ', '-').replace(' ', '-')}.log")
        done(rows)
    return rows


def run_block(block: Block, log: Path) -> Row:
    """Run it in a process group of its own, which is killed at the time limit with all that it started."""
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": root, "PYTHONUNBUFFERED": "1"}
    began = time.monotonic()
    with log.open("wb") as out:
        process = LimitedProcess(
            [sys.executable, *block.argv], what=block.name, limit_s=block.limit_s,
            cwd=root, env=env, compiles=True, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            has_ended = process.ends()
        finally:
            process.end(GRACE_S)
    status: Status = "timeout" if not has_ended else "failed" if process.returncode else "ok"
    figures = _figures(block)
    if status == "ok" and figures.get("mfu") is not None and figures["mfu"] < figures.get("goal", 0):
        status = "missed"
    last, told = _last_line(log), _told(log)
    if status == "failed" and process.returncode == 1 and last.endswith(MISSED):
        status = "missed"
    if status == "failed" and process.returncode == MISSING:
        status = "skipped"
    locks = locks_of(process.env) if status == "timeout" else ""
    ended = f"after its limit of {block.limit_s} s{locks}" if status == "timeout" else f"exit code {process.returncode}"
    detail = told if status in ("ok", "missed") else "; ".join(each for each in (told, f"{ended}: {last}") if each)
    return Row(block.name, status, round(time.monotonic() - began, 1), detail, figures)


def _figures(block: Block) -> dict[str, Any]:
    if block.result is None or not block.result.exists():
        return {}
    found: dict[str, Any] = json.loads(block.result.read_text(encoding="utf-8"))
    return found


def _lines(log: Path) -> list[str]:
    return [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]


def _last_line(log: Path) -> str:
    return "".join(_lines(log)[-1:])[-LAST_CHARACTERS:]


def _told(log: Path) -> str:
    return "; ".join(line[len(TOLD) :] for line in _lines(log) if line.startswith(TOLD))[:TOLD_CHARACTERS]
