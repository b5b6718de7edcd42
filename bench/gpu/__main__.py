"""`python -m bench.gpu [--output DIR] [--only checks|timings]`; exit code 1 unless all are ok, 4 without a GPU."""

from __future__ import annotations

import argparse
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.gpu.blocks import check_blocks, timing_blocks
from bench.gpu.run import Row, run_blocks
from bench.gpu.table import markdown, write_table
from dsrun.system.gpus import visible_gpus

ROOT = Path(__file__).parents[2]
LIBRARIES = ("torch", "transformers", "accelerate", "deepspeed", "trl", "flash-attn")


def main() -> int:
    """Run the blocks; the table is written anew after each of them."""
    options = _parser().parse_args()
    gpus = visible_gpus()
    if not gpus:
        print("error: bench-gpu needs an NVIDIA GPU, and this machine has none (see nvidia-smi -L)", file=sys.stderr)
        return 4
    facts = {
        "date": datetime.now(UTC).date().isoformat(),
        "gpus": [gpu.name for gpu in gpus],
        "versions": {name: number for name in LIBRARIES if (number := _version(name))},
    }
    output: Path = options.output.resolve()
    logs = output / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []

    def done(row: Row) -> None:
        rows.append(row)
        print(f"{row.name}: {row.status} in {row.seconds:.0f} s {row.detail}", flush=True)
        write_table(rows, facts, output)

    with tempfile.TemporaryDirectory() as scratch:
        blocks = check_blocks(ROOT) if options.only != "timings" else []
        blocks += timing_blocks(Path(scratch)) if options.only != "checks" else []
        run_blocks(blocks, logs, done=done)
    print(markdown(rows, facts))
    print(f"written to {output}/bench-gpu.json and bench-gpu.md; outputs of the blocks are in {logs}")
    return 0 if all(row.status == "ok" for row in rows) else 1


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("runs/bench-gpu"), help="folder of the table and the logs")
    parser.add_argument("--only", choices=("checks", "timings"), help="one half (default: both)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
