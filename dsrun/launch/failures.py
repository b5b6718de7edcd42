"""What failed workers left behind: one JSON file per rank, written by `dsrun.train.failure`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def first_failure(folder: Path, *, only_expected: bool = False) -> dict[str, Any] | None:
    """The failure that began it, None where no worker wrote one.

    A rank that knows what is wrong says more than one that only lost its peers, however early; `only_expected` passes
    over the latter. Keys: rank, exit_code, message, time, log, expected.
    """
    failures = sorted(
        (_read(file) for file in folder.glob("rank-*.json")), key=lambda each: float(each["time"])
    )
    known = [each for each in failures if each["expected"]]
    if not known and not only_expected:
        known = failures
    return known[0] if known else None


def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())
    return found
