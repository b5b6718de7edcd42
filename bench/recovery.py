"""What a killed rank costs: from the kill to the first new step, and goodput with a kill every minute.

dsrun train under DDP (--zero 0) against `torchrun --max-restarts` with a plain Trainer script, DDP as well: the same
model, batch and number of steps between checkpoints, two gloo ranks on CPU, in turn on one machine. Only ratios are
compared.
"""

from __future__ import annotations

import math
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

from bench.recovery_runs import Dsrun, Run, Torchrun, make_data, make_model

KILLS = 3
TURNS = 2
"""Latency is measured over TURNS × KILLS kills of each, the two in turn."""
EVERY_S = 60.0
GOODPUT_KILLS = 4
AFTER_CHECKPOINT_S = 2.0
LIMIT = 3.0
"""dsrun has to be this many times as fast from the kill to the first new step."""


def main() -> bool:
    """Print both ratios; whether the limit holds."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the runs are ended, too
    with tempfile.TemporaryDirectory(prefix="recovery-") as scratch:
        model, data = make_model(Path(scratch, "model")), make_data(Path(scratch, "data.jsonl"))
        holds = _latency(Path(scratch), model, data)
        _goodput(Path(scratch), model, data)
    return holds


RIVALS: tuple[type[Dsrun] | type[Torchrun], ...] = (Dsrun, Torchrun)


def _latency(scratch: Path, model: Path, data: Path) -> bool:
    """Kills after a checkpoint, so that both have one to go on from."""
    seconds: dict[str, list[float]] = {rival.name: [] for rival in RIVALS}
    for turn in range(TURNS):
        for rival in RIVALS:
            run = rival(scratch / f"{rival.name}-{turn}", model, data)
            try:
                seconds[rival.name] += _kills(run)
            finally:
                run.end()
    medians = {name: median(values) for name, values in seconds.items()}
    for name, values in seconds.items():
        print(f"{name}: kill to first new step {medians[name]:.1f} s (median of {_shown(values)})")
    ratio = medians["torchrun"] / medians["dsrun"]
    print(f"from the kill to the first new step dsrun is {ratio:.2f} × as fast as torchrun --max-restarts")
    print(f"at least {LIMIT:g} ×: {'yes' if ratio >= LIMIT else 'NO'}")
    return ratio >= LIMIT


def _kills(run: Run) -> Iterator[float]:
    """Seconds from each kill to the first new step; infinite, and the last one, where none came."""
    for kill in range(1, KILLS + 1):
        run.wait("a checkpoint", partial(_saved, run, run.checkpoint(), kill))
        time.sleep(AFTER_CHECKPOINT_S)
        moment = run.kill()
        if not run.reaches(partial(_saved, run, 0, kill + 1)):
            print(run.missing("a new step"))
            yield math.inf
            return
        yield run.attempts()[kill] - moment


def _saved(run: Run, before: int, attempts: int) -> bool:
    return run.checkpoint() > before and len(run.attempts()) == attempts


def _goodput(scratch: Path, model: Path, data: Path) -> None:
    """Steps kept in a time with a kill every minute, as a share of those an undisturbed run makes in it."""
    shares = {}
    for rival in RIVALS:
        run = rival(scratch / f"{rival.name}-goodput", model, data)
        try:
            shares[rival.name] = _share(run)
        finally:
            run.end()
    print(
        ", ".join(f"{name} {share:.1%}" for name, share in shares.items()) + f" goodput, a kill every {EVERY_S:.0f} s"
    )
    if shares["torchrun"]:
        print(f"dsrun's goodput is {shares['dsrun'] / shares['torchrun']:.2f} × torchrun's")


def _share(run: Run) -> float:
    """Steps kept × the median time of a step / wall time, from the first step to a minute after the last kill.

    A run that ends on the way, with nothing left to go on from, keeps what it had.
    """
    run.wait("the first step", run.attempts)
    begin = time.time()
    first = run.steps()[-1][1]
    for turn in range(GOODPUT_KILLS + 1):
        time.sleep(max(0.0, begin + (turn + 1) * EVERY_S - time.time()))
        if turn < GOODPUT_KILLS:
            run.kill()
    steps = [(moment, step) for moment, step in run.steps() if moment >= begin]
    paces = [later - earlier for (earlier, a), (later, b) in pairwise(steps) if b == a + 1]
    kept = steps[-1][1] - first if steps else 0
    if run.process.poll() is not None:
        print(f"{run.name} ended on the way with code {run.process.returncode}")
    print(f"{run.name}: {kept} steps kept of {len(steps)} made, {median(paces) * 1000:.0f} ms a step")
    return kept * median(paces) / (time.time() - begin)


def _shown(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
