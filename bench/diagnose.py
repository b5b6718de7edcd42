"""How fast `dsrun diagnose` reads logs: 100 MB in one file and in 64, beside grep for one regular expression.

All CPU time of a new process counts, its start included. grep has one pattern in place of some 400 rules.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.processes import COMMAND_S, run

SIZE = 100_000_000
RANKS = 64
LIMIT_S = 2.0
PATTERN = "(CUDA|HIP) out of memory|Connection (reset|closed) by peer|[A-Za-z]+Error: |loss.*nan"
LINE = "{:12} {:>14} {:>14} {:>8}"


def main() -> bool:
    """Print the table; whether `dsrun diagnose` stays within the limit."""
    held = True
    print(f"CPU seconds for {SIZE / 1e6:.0f} MB of logs")
    print(LINE.format("logs", "dsrun diagnose", "grep -E", "ratio"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        one, many = folder / "one.log", folder / "many"
        many.mkdir()
        one.write_text("".join(_lines(SIZE, seed=0)))
        for rank in range(RANKS):
            (many / f"rank_{rank}.log").write_text("".join(_lines(SIZE // RANKS, seed=rank)))
        for label, path in (("1 file", one), (f"{RANKS} files", many)):
            own = _cpu([sys.executable, "-m", "dsrun", "diagnose", str(path)])
            grep = _cpu(["grep", "-E", "-c", "-r", PATTERN, str(path)], env={**os.environ, "LC_ALL": "C"})
            print(LINE.format(label, f"{own:.2f}", f"{grep:.2f}", f"{own / grep:.1f}"), flush=True)
            held &= own <= LIMIT_S
    print(f"within {LIMIT_S:g} CPU seconds: {'yes' if held else 'NO'}")
    return held


def _lines(size: int, *, seed: int) -> Iterator[str]:
    """A training's log of about `size` bytes: steps, progress bars, and lines with the words of failures."""
    chance, written, step = random.Random(seed), 0, 0
    while written < size:
        step += 1
        kind = chance.random()
        if kind < 0.5:
            loss, norm = chance.random() * 3, chance.random()
            line = f"{{'loss': {loss:.4f}, 'grad_norm': {norm:.4f}, 'epoch': {step / 1000:.2f}}}\n"
        elif kind < 0.7:
            line = f"2026-11-21 11:{step // 60 % 60:02}:{step % 60:02},123 INFO rank {seed}: memory 12.3 GiB, NCCL ok\n"
        elif kind < 0.8:
            line = "[2026-11-21 11:51:06,123] [WARNING] [stage3.py:2000:step] cache flushes, Error Exception caught\n"
        else:
            line = f" {step % 100}%|###  | {step}/1000 [00:01<00:02, 1.75it/s]\r"
        written += len(line)
        yield line


def _cpu(argv: list[str], env: dict[str, str] | None = None) -> float:
    """CPU seconds of a process and its children; the least of three runs."""
    found = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run(argv, what=argv[0], limit_s=COMMAND_S, stdout=subprocess.DEVNULL, env=env)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)
