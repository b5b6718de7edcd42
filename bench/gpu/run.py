"""Runs blocks one after another: whatever becomes of one, the next is run, and each is a row of the table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from bench.gpu.blocks import Block

GRACE_S = 15.0
MISSED = ("MISSED", "NO")
"""How the last line of a benchmark ends that ran and exceeded a limit."""
LAST_CHARACTERS = 300

Status = Literal["ok", "missed", "failed", "timeout"]


@dataclass(frozen=True)
class Row:
    """What became of a block: `missed` where all ran and a goal was not reached. `figures` is what it wrote,
    `detail` the last line of its output where it is not ok."""

    name: str
    part: str
    status: Status
    seconds: float
    detail: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def run_blocks(blocks: Sequence[Block], logs: Path, *, done: Callable[[Row], None]) -> list[Row]:
    """Run them all; `done` gets each row as soon as there is one."""
    rows = []
    for block in blocks:
        rows.append(run_block(block, logs / f"{block.part}-{block.name.replace(' ', '-')}.log"))
        done(rows[-1])
    return rows


def run_block(block: Block, log: Path) -> Row:
    """Run it in a process group of its own, which is killed whole at the time limit."""
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": root, "PYTHONUNBUFFERED": "1"}
    began = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *block.argv],
            cwd=root, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(block.limit_s)
            status: Status = "failed" if process.returncode else "ok"
        except subprocess.TimeoutExpired:
            status = "timeout"
        finally:
            _end(process)
    figures = _figures(block)
    if status == "ok" and figures.get("mfu") is not None and figures["mfu"] < figures.get("goal", 0):
        status = "missed"
    last = _last_line(log)
    if status == "failed" and process.returncode == 1 and last.endswith(MISSED):
        status = "missed"
    detail = "" if status == "ok" else f"exit code {process.returncode}: {last}"
    return Row(block.name, block.part, status, round(time.monotonic() - began, 1), detail, figures)


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the group, whose supervisors then end their ranks; SIGKILL to what is left."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)


def _figures(block: Block) -> dict[str, Any]:
    if block.result is None or not block.result.exists():
        return {}
    found: dict[str, Any] = json.loads(block.result.read_text(encoding="utf-8"))
    return found


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][-LAST_CHARACTERS:] if lines else ""
