"""The two trainings that bench/translation.py compares: one recipe, as two command lines, side by side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from bench.translation_model import LONGEST
from dsrun.runs.records import read_records

SAMPLE_S = 1.0


@dataclass(frozen=True)
class Recipe:
    """What both train with; `arguments` are those of transformers, and flags of `dsrun train`, under the same names."""

    model: str
    train: str
    test: str
    output: str
    arguments: dict[str, Any]
    max_length: int = LONGEST


@dataclass
class Run:
    """A training in progress: its processes' CPU seconds (user + system) so far, sampled every SAMPLE_S."""

    name: str
    recipe: Recipe
    process: subprocess.Popen[bytes]
    samples: list[tuple[float, float]] = field(default_factory=list)
    began: float = field(default_factory=time.time)
    wall_s: float = 0.0

    def sample(self) -> bool:
        """Take a sample; False when the run has ended."""
        if self.process.poll() is not None:
            self.wall_s = self.wall_s or time.time() - self.began
            return False
        self.samples.append((time.time(), _cpu_seconds(self.process.pid)))
        return True

    def cpu_at(self, moment: float) -> float:
        """CPU seconds used until `moment` (seconds since the epoch), between samples by interpolation."""
        place = bisect_left(self.samples, (moment, 0.0))
        if not 0 < place < len(self.samples):
            return self.samples[min(place, len(self.samples) - 1)][1]
        (t0, c0), (t1, c1) = self.samples[place - 1 : place + 1]
        return c0 + (c1 - c0) * (moment - t0) / (t1 - t0)

    def steps(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl that have a training loss."""
        return [row for row in read_records(Path(self.recipe.output, "metrics.jsonl")) if "loss" in row]

    def cpu_per_step(self) -> float:
        """CPU seconds of a step, from the first log line to the last: without start-up, evaluation and export."""
        first, *_, last = self.steps()
        begin, end = (self.cpu_at(datetime.fromisoformat(row["time"]).timestamp()) for row in (first, last))
        return (end - begin) / int(last["step"] - first["step"])


def side_by_side(runs: Iterable[tuple[str, Recipe, Sequence[str]]]) -> list[Run]:
    """Start all runs at once, one thread each, and wait. RuntimeError when one fails."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    started: list[Run] = []
    try:
        for name, recipe, command in runs:
            with _log(recipe).open("wb") as log:
                process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            started.append(Run(name, recipe, process))
        running = started
        while running:
            time.sleep(SAMPLE_S)
            running = [run for run in running if run.sample()]
            for run in started:
                if run.process.returncode:
                    raise RuntimeError(f"{run.name} failed; see {_log(run.recipe)}")
    finally:
        for run in started:
            run.process.terminate()
            run.process.wait()
    return started


def _log(recipe: Recipe) -> Path:
    return Path(recipe.output).with_suffix(".log")


def dsrun_command(recipe: Recipe, *, zero: int) -> list[str]:
    """`dsrun train`, as a user would write it."""
    flags = {
        "model": recipe.model, "train-file": recipe.train, "test-file": recipe.test, "output": recipe.output,
        "do-train": "true", "do-predict": "true", "zero": zero, "max-source-length": recipe.max_length,
        "max-target-length": recipe.max_length, "save-strategy": "no", **recipe.arguments,
    }  # fmt: skip
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", "dsrun", "train", *words]


def plain_command(recipe: Recipe) -> list[str]:
    """The script beside this file."""
    folder = Path(recipe.output)
    folder.mkdir(parents=True)
    file = folder / "recipe.json"
    file.write_text(json.dumps(asdict(recipe), indent=2), encoding="utf-8")
    return [sys.executable, "-m", "bench.translation_plain", str(file)]


def _cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and all its descendants, those that have ended included."""
    total = 0.0
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
    return total
