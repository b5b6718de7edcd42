"""How often a slow rank is named, and a rank of equal ones falsely: `python -m bench.straggler --runs 10`.

Gloo ranks make runs of 50 steps, one after the other, with the clocks and heartbeats of `dsrun train`; in each of them
one rank sleeps so many per cent of its own step. This process looks at them as a supervisor does, every five seconds,
with its detector.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, cast

from bench.processes import LimitedProcess
from dsrun.launch.supervisor.status_files import EVERY_S, RankSnapshot, node_status
from dsrun.monitoring.straggler import StragglerDetector
from dsrun.runs.heartbeat import read_beats

STEPS = 50
SLOWDOWNS = (0, 10, 20, 30, 50)
RUNS = 2
"""Of each slowdown; ten take a quarter of an hour."""
NOISE = 0.1
"""The standard deviation of steps beside the machine's own noise, as a share: half of the runs at 0% have it."""
GOAL = 20
"""A rank slower by so many per cent or more is named in nine of ten runs within 50 steps, and none at 0%."""
LIMIT_S = 300.0
"""Of the start, and of each run: 50 steps of 0.3 s, on a busy machine."""
_POLL_S = 0.2


@dataclass
class StragglerRun:
    """One run of the ranks: what is slow in it, and what the detector said, as (rank, step, slowdown)."""

    number: int
    percent: int
    rank: int
    noise: float
    found: tuple[tuple[int, int, float], ...] = ()
    ratio: float = 0.0

    @property
    def hit(self) -> int | None:
        """The step at which the slow rank was named."""
        return next((step for rank, step, _ in self.found if rank == self.rank and self.percent), None)

    @property
    def false(self) -> int:
        """How many ranks were named that are as fast as the others."""
        return sum(rank != self.rank or not self.percent for rank, _, _ in self.found)


def main(words: Sequence[str] = ()) -> bool:
    """Print hits and false alarms by slowdown; whether the goal is reached."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the ranks are ended, too
    options = _parser().parse_args(words)
    draw = random.Random(options.seed)
    plan = [
        StragglerRun(number, percent, draw.randrange(options.ranks), NOISE * (percent == 0 and turn % 2 == 0))
        for number, (turn, percent) in enumerate(product(range(options.runs), options.slowdowns))
    ]
    with tempfile.TemporaryDirectory(prefix="straggler-") as scratch:
        _watch(plan, Path(scratch), options)
    for percent in options.slowdowns:
        _print([run for run in plan if run.percent == percent])
    slow = [run.hit is not None for run in plan if run.percent >= GOAL]
    held = sum(slow) >= 0.9 * len(slow) and not any(run.false for run in plan)
    print(f"from {GOAL}% on named in 9 of 10 runs, and no other rank: {'yes' if held else 'NO'}")
    return held


def _watch(plan: list[StragglerRun], folder: Path, options: argparse.Namespace) -> None:
    """Start the ranks, and look at them until they have ended."""
    runs = [{"percent": run.percent, "rank": run.rank, "noise": run.noise} for run in plan]
    (folder / "plan.json").write_text(json.dumps({"runs": runs, "waits": options.waits}))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.ranks}"]
    with (folder / "log").open("wb") as log:
        kinds: dict[str, Any] = {"stdout": log, "stderr": log, "start_new_session": True}
        ranks = [*command, "--module", "bench.straggler_rank", str(folder)]
        with LimitedProcess(ranks, what="the ranks", limit_s=LIMIT_S, **kinds) as process:
            looked = time.monotonic()
            for run in plan:
                looked = _look(run, folder, process, options.ranks, looked)
                process.renew()
                print(_line(run), flush=True)
            process.finish()


def _look(run: StragglerRun, folder: Path, process: LimitedProcess, ranks: int, looked: float) -> float:
    """Look at one run every five seconds, as the supervisor of node 0 does, until all its ranks are through; when it
    was last done, of which `looked` is that of the run before."""
    detector, job = StragglerDetector(), cast(Any, SimpleNamespace(node_rank=0, world_size=ranks))
    is_over = False
    while not is_over:
        time.sleep(_POLL_S)
        process.check()
        if process.poll():
            sys.exit(f"error: the ranks ended with exit code {process.returncode}: {(folder / 'log').read_text()}")
        beats = read_beats(folder / str(run.number))
        is_over = len(beats) == ranks and all(beat.step >= STEPS for beat in beats.values())
        now = time.monotonic()
        snapshot = RankSnapshot(
            attempt=run.number, beats=beats, pids={rank: beat.pid for rank, beat in beats.items()}, now=now
        )
        status = node_status(snapshot, job, gpus=(), cpu=None)
        if now - looked >= EVERY_S:
            looked = now
            named = [each for each in detector.update([status]) if each.kind == "slow"]
            run.found += tuple((each.rank, each.step, each.slowdown) for each in named)
        own = {each.rank: each.own_s for each in status.ranks if each.own_s}
        others = [seconds for rank, seconds in own.items() if rank != run.rank]
        run.ratio = own[run.rank] / median(others) if run.rank in own and others else 0.0
    return looked


def _line(run: StragglerRun) -> str:
    named = ", ".join(f"rank {rank} named at step {step} as {slowdown:.2f}" for rank, step, slowdown in run.found)
    noise = f" and {run.noise:.0%} noise" if run.noise else ""
    return f"{run.percent}%{noise}, rank {run.rank}: {named or 'none named'} ({run.ratio:.2f} in the end)"


def _print(runs: list[StragglerRun]) -> None:
    steps = [step for run in runs if (step := run.hit) is not None]
    when = f", after step {median(steps):.0f} at the median, {max(steps)} at most" if steps else ""
    hits = f"named in {len(steps)} of {len(runs)} runs{when}; " if runs[0].percent else ""
    print(f"{runs[0].percent:2}% slower: {hits}{sum(run.false for run in runs)} false alarms in {len(runs)} runs")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.straggler", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS, metavar="N", help=f"of each slowdown (default {RUNS})")
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="ranks of a run (default 2)")
    parser.add_argument("--slowdowns", type=int, nargs="+", default=SLOWDOWNS, metavar="PERCENT")
    parser.add_argument("--waits", action="store_true", help="a step is a wait, as for a GPU, not work of the CPU")
    parser.add_argument("--seed", type=int, default=1, help="of the ranks that are slow (default 1)")
    return parser


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
