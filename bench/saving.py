"""What integrity adds to the saving of one file: CRC-32, fsync and manifest against torch.save alone."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from dsrun.runs.manifest import ChecksumPool, write_manifest
from dsrun.runs.records import sync_file

ROUNDS = 9
TENSORS = 67
"""Of 4 MiB each: 281 MB, as a rank of a model with 60 million parameters saves."""
FILE = "optimizer.pt"
GOAL = 1.1

State = dict[str, torch.Tensor]


def plain(state: State, folder: Path) -> None:
    torch.save(state, folder / FILE)


def synced(state: State, folder: Path) -> None:
    plain(state, folder)
    sync_file(folder / FILE)


def sealed(state: State, folder: Path) -> None:
    """As dsrun.train.checkpoint.save does."""
    pool = ChecksumPool(folder)
    plain(state, folder)
    pool.add(folder / FILE)
    sums = pool.result()
    pool.close()
    write_manifest(folder, {}, sealed=sums)


WAYS: tuple[Callable[[State, Path], None], ...] = (plain, synced, sealed)


def main() -> int:
    """Print the medians. No limit: how much of it is hidden depends on free cores and on the disk."""
    state = {str(number): torch.randn(1 << 20) for number in range(TENSORS)}
    costs: dict[str, list[tuple[float, float]]] = {way.__name__: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way in WAYS:
            with tempfile.TemporaryDirectory() as folder:
                began, spent = time.perf_counter(), time.process_time()
                way(state, Path(folder))
                costs[way.__name__].append((time.perf_counter() - began, time.process_time() - spent))
    walls, cpus = ({name: median(row[at] for row in rows) for name, rows in costs.items()} for at in (0, 1))
    for name in costs:
        print(f"{name}: {walls[name]:.2f} s, {cpus[name]:.2f} CPU s")
    for kind, times in (("wall time", walls), ("CPU time", cpus)):
        ratios = (
            f"{times['sealed'] / times['plain']:.2f} × torch.save, {times['sealed'] / times['synced']:.2f} × with fsync"
        )
        print(f"sealed takes {ratios} ({kind}; goal: {GOAL})")
    return 0
