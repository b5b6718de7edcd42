"""`python -m bench.gpu [--full] [--steps NAME …] [--dry]`; exit code 1 unless all is well, 4 without a GPU."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.gpu import few, wheel
from bench.gpu.blocks import Block, blocks
from bench.gpu.run import BAD, Row, run_blocks
from bench.gpu.table import markdown, write_table
from dsrun.machine.gpus import visible_gpus

BUDGET_S = 600.0
SLOW = 5
"""How much longer a dry run's blocks may take on a CPU."""
LIBRARIES = ("torch", "transformers", "accelerate", "deepspeed", "trl", "flash-attn")


def main() -> int:
    """Run the blocks; the table is written anew after each of them."""
    options = _parser().parse_args()
    # So that a block and the build in the background are ended with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    gpus = [] if options.dry else visible_gpus()
    if not gpus and not options.dry:
        print(
            "error: bench-gpu needs an NVIDIA GPU, and this machine has none (see nvidia-smi -L; --dry)",
            file=sys.stderr,
        )
        return 4
    facts = {
        "date": datetime.now(UTC).date().isoformat(),
        "gpus": [gpu.name for gpu in gpus],
        "versions": {name: number for name in LIBRARIES if (number := _version(name))},
    }
    output: Path = options.output.resolve()
    logs = output / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    shown: set[str] = set()

    def done(rows: list[Row]) -> None:
        for row in rows:
            if row.status != "to come" and row.name not in shown:
                shown.add(row.name)
                print(f"{row.name}: {row.status} in {row.seconds:.0f} s {row.detail}", flush=True)
        write_table(rows, facts, output)

    with tempfile.TemporaryDirectory(prefix="dsrun-bench-gpu-") as scratch:
        os.environ[few.WORK] = scratch
        os.environ[few.DRY] = "1" if options.dry else ""
        chosen = _chosen(blocks(Path(scratch)), options)
        if options.dry:
            chosen = [replace(block, limit_s=SLOW * block.limit_s, least_s=0) for block in chosen]
        budget = None if options.full else options.budget
        building = any(block.name == "wheel" for block in chosen) and not options.dry
        with wheel.building(Path(scratch)) if building else nullcontext():
            rows = run_blocks(chosen, logs, budget_s=budget, done=done)
    print(markdown(rows, facts))
    print(f"written to {output}/bench-gpu.json and bench-gpu.md; outputs of the blocks are in {logs}")
    return 1 if any(row.status in BAD for row in rows) else 0


def _chosen(found: list[Block], options: argparse.Namespace) -> list[Block]:
    """Those that were named, in that order, or all that are not only for --full."""
    if options.steps:
        named = {block.name: block for block in found}
        return [named[name] for name in options.steps]
    return [block for block in found if options.full or not block.full]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__.splitlines()[0])
    names = [block.name for block in blocks(Path())]
    parser.add_argument("--output", type=Path, default=Path("runs/bench-gpu"), help="folder of the table and the logs")
    parser.add_argument("--full", action="store_true", help="all blocks, each with its own limit alone (over an hour)")
    parser.add_argument("--budget", type=float, default=BUDGET_S, metavar="S", help=f"seconds (default {BUDGET_S:g})")
    parser.add_argument("--steps", nargs="+", choices=names, metavar="NAME", help=f"only these: {', '.join(names)}")
    parser.add_argument("--dry", action="store_true", help="small models on the CPU, to try the blocks themselves")
    return parser


if __name__ == "__main__":
    sys.exit(main())
