"""What it costs to compare a prepared entry with its checksums when it is opened: CPU seconds a GiB."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from dsrun.train.data.cache import obtain

SIZE, ROUNDS = 1 << 30, 5
GOAL_S = 0.5


def main() -> bool:
    """Print the cost of opening entries of one file and of many; whether the goal is met."""
    held = True
    with tempfile.TemporaryDirectory(prefix="dsrun-prepared-") as name:
        os.environ["DSRUN_CACHE"] = name
        for files in (1, 64):
            key = f"files-{files}"
            obtain(key, lambda work, files=files: _fill(work, files))  # type: ignore[misc]
            cpu, wall = (median(column) for column in zip(*(_opening(key) for _ in range(ROUNDS)), strict=True))
            print(f"{files:2} files: {cpu:.2f} CPU s a GiB, {wall:.2f} s; goal {GOAL_S:g} CPU s a GiB")
            held &= cpu <= GOAL_S
    return held


def _fill(work: Path, files: int) -> dict[str, Any]:
    block = os.urandom(1 << 20)
    for number in range(files):
        with (work / f"{number}.bin").open("wb") as file:
            for _ in range(SIZE // files // len(block)):
                file.write(block)
    return {}


def _opening(key: str) -> tuple[float, float]:
    """CPU and wall seconds, with the files in the page cache."""

    def never(_: Path) -> dict[str, Any]:
        raise AssertionError("the entry was not found")

    cpu, wall = time.process_time(), time.monotonic()
    obtain(key, never)
    return time.process_time() - cpu, time.monotonic() - wall
