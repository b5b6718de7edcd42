"""From the command line to the end of the first step: `dsrun train` against a plain Trainer script under torchrun.

Both train the same small Llama on the same tokens under the same DeepSpeed JSON (ZeRO-2), on one rank and on two, in
turn. What counts is CPU time, user and system seconds of all processes: a busy machine stretches wall time, which is
printed too. `python -m bench.first_step --cold` gives each run an empty folder of compiled operations, with the
optimizer on the host: minutes of compilation for each.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bench.cpu_clock import cpu_seconds
from bench.ladder.data import LLAMA, VOCABULARY, make_model
from bench.ladder.rungs import DEEPSPEED, PACKED, PADDED, PATIENCE_S, RUNGS, Ladder, environment
from bench.processes import LimitedProcess

GOAL = 0.7
ROUNDS = 3
POLL_S = 0.1
ROWS, TOKENS = 128, 128
ENDLESS = 1_000_000
SMALL = {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 3}
OFFLOADED = {**DEEPSPEED["zero_optimization"], "offload_optimizer": {"device": "cpu"}}


def main(words: Sequence[str] = ()) -> bool:
    """Print both ratios; whether the goal is met."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that a run in progress is ended, too
    parser = argparse.ArgumentParser(prog="python -m bench.first_step", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"runs of each side (default {ROUNDS})")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], help="default: 1 2")
    parser.add_argument("--cold", action="store_true", help="compile all operations, with the optimizer on the host")
    options = parser.parse_args(words)
    # Whoever installs dsrun has its byte code.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    met = True
    with tempfile.TemporaryDirectory(prefix="dsrun-first-step-") as name:
        folder = Path(name)
        data, model = make_rows(folder / "train.jsonl"), make_model(folder / "model", LLAMA | SMALL)
        for ranks in options.ranks:
            deepspeed = DEEPSPEED | ({"zero_optimization": OFFLOADED} if options.cold else {})
            ladder = Ladder(folder, model, data, False, steps=ENDLESS, warm_up=0, ranks=ranks, deepspeed=deepspeed)
            met &= compare(ladder, options.rounds, cold=options.cold)
    return met


def make_rows(file: Path) -> Path:
    """Rows of random tokens, all of one length, so that the first step is the same on both sides."""
    chance = random.Random(0)
    rows = ([chance.randrange(3, VOCABULARY) for _ in range(TOKENS)] for _ in range(ROWS))
    file.write_text("".join(f'{{"input_ids": {row}, "labels": {row}}}\n' for row in rows))
    return file


def compare(ladder: Ladder, rounds: int, *, cold: bool) -> bool:
    """Measure and print both sides; whether the goal is met."""
    found: dict[str, list[tuple[float, float]]] = {PADDED: [], PACKED: []}
    # The first round fills the file cache and writes byte code.
    for number in range(int(cold), rounds + 1):
        for rung in (rung for rung in RUNGS if rung.name in found):
            output = ladder.folder / f"{rung.kind}-{ladder.ranks}-{number}"
            # A folder of its own: DeepSpeed's is shared, and one killed while it compiles leaves a lock there for ever.
            os.environ["TORCH_EXTENSIONS_DIR"] = str((output if cold else ladder.folder) / "ops")
            cost = first_step(ladder.command(rung, output), output)
            if number:
                found[rung.name].append(cost)
    (plain, plain_wall), (own, own_wall) = (
        [median(values) for values in zip(*each, strict=True)] for each in found.values()
    )
    what = f"{ladder.ranks} rank{'s' if ladder.ranks > 1 else ''}" + (", cold" if cold else "")
    print(f"{what}: CPU time dsrun {own:.1f} s, Trainer {plain:.1f} s; wall {own_wall:.1f} s, {plain_wall:.1f} s")
    met = own / plain <= GOAL
    print(f"{what}: {own / plain:.2f} × the CPU time; goal {GOAL:g} ×: {'met' if met else 'MISSED'}", flush=True)
    return met


def first_step(command: list[str], output: Path) -> tuple[float, float]:
    """CPU and wall seconds until rank 0 has written its first step down; ends the run. RuntimeError if it fails."""
    log, what = output / "bench.log", " ".join(command[:4])
    with log.open("wb") as out:
        kinds = {"env": environment(gpu=False), "compiles": True, "stdout": out, "stderr": out}
        process = LimitedProcess(command, what=what, limit_s=PATIENCE_S, **kinds)
    try:
        while not any(file.stat().st_size for file in output.glob("**/metrics*.jsonl")):
            if process.poll() is not None:
                raise RuntimeError(f"{what} made no step; see {log}")
            process.check()
            time.sleep(POLL_S)
        return cpu_seconds(process.pid), time.monotonic() - process.began
    finally:
        process.end(grace_s=0)


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
