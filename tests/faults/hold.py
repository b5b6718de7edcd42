"""Ranks that wait at a point of their run until a test has done what it has to do meanwhile."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

INJECT = Path(__file__).with_name("inject")
ROOT = Path(__file__).parents[2]
PATIENCE_S = 300


class Hold:
    """Rank `rank` (None: whichever comes first) waits in the `call`-th call of `point`, once in each attempt.

    The points are those of `tests.faults.inject`. However long the test is kept from the processor, the run gets no
    further than that before `release`. Give it `--hang-timeout 0`: a rank that waits hangs.
    """

    def __init__(self, folder: Path, point: str, *, call: int = 1, rank: int | None = 1) -> None:
        self._folder = folder
        self._go = folder / "go"
        fault = {
            "point": point, "action": f"hold {self._go}", "call": call, "rank": rank,
            "marker": str(folder / "held-$DSRUN_ATTEMPT"),
        }  # fmt: skip
        paths = [str(INJECT), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.env = {"DSRUN_FAULT": json.dumps(fault), "PYTHONPATH": os.pathsep.join(paths)}
        """What the ranks need in their environment."""

    def is_held(self, attempt: int | str = 0) -> bool:
        return (self._folder / f"held-{attempt}").exists()

    def wait(self, attempt: int | str = 0) -> None:
        """Until a rank of that attempt waits."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.is_held(attempt):
            assert time.monotonic() < deadline, "no rank came so far"
            time.sleep(0.02)

    def release(self) -> None:
        """Let it go on, and those of later attempts pass."""
        self._go.touch()
