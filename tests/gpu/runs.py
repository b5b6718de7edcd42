"""A short `dsrun train` on the GPUs of this machine, and what its run folder says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from dsrun.runs.records import read_records

ROOT = Path(__file__).parents[2]
STEPS = 4


class Trained:
    """A finished run."""

    def __init__(self, folder: Path, output: str) -> None:
        self.folder, self.output = folder, output

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for row in read_records(self.folder / "metrics.jsonl") if "loss" in row]

    @property
    def losses(self) -> list[float]:
        return [row["loss"] for row in self.rows]

    @property
    def facts(self) -> dict[str, Any]:
        return json.loads((self.folder / "run.json").read_text())

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in read_records(self.folder / "events.jsonl") if row["kind"] == kind]


def train(files: tuple[Path, Path], folder: Path, *flags: str) -> Trained:
    """Four steps of 32 samples in the order of the seed; `flags` go last and take precedence."""
    model, data = files
    argv = [
        "--model", model, "--train-file", data, "--output", folder, "--max-length", "512", "--do-train", "true",
        "--global-batch-size", "32", "--micro-batch-size", "4", "--max-steps", STEPS, "--logging-steps", "1",
        "--learning-rate", "1e-3", "--save-strategy", "no", "--validation-split-percentage", "0", "--seed", "3", *flags,
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "dsrun", "train", *map(str, argv)],
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    return Trained(folder, done.stdout)
