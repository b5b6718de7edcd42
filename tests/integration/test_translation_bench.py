"""bench/translation.py from end to end, on pairs made here: both trainings end, and are compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.train, pytest.mark.exhaustive]


def test_translation_compared(tmp_path):
    """A line for each side; both have translated every test source, from the same weights."""
    data = tmp_path / "data"
    data.mkdir()
    pairs = [{"source": f"line {n} of the file", "target": f"Zeile {n} der Datei"} for n in range(80)]
    for part in ("train", "validation", "test"):
        (data / f"{part}.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    (data / "versions.json").write_text(json.dumps({"pairs": {"train": 80}, "packages": {"example": "1.0"}}))
    done = subprocess.run(
        [sys.executable, "-m", "bench.translation", "--steps", "3", "--rows", "70", "--output", tmp_path],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "DSRUN_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    logs = "".join(file.read_text() for file in tmp_path.glob("seed-1/*.log"))
    assert done.returncode == 0, done.stderr + logs
    assert "pairs: 80 train\npackages: example 1.0\n" in done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines() if line.startswith(("dsrun ", "plain "))] == [
        "dsrun",
        "plain",
    ]
    for side in ("dsrun", "plain"):
        lines = (tmp_path / "seed-1" / side / "predictions-test.jsonl").read_text().splitlines()
        assert [json.loads(line)["reference"] for line in lines] == [pair["target"] for pair in pairs[:70]]
