"""How long a checkpoint takes, from what an earlier run wrote into its folder."""

from __future__ import annotations

from pathlib import Path

from dsrun.runs.folder import RunFolder
from dsrun.runs.records import iter_records


def checkpoint_seconds(folder: Path) -> float | None:
    """Seconds of the slowest checkpoint that the run in `folder` has written; None where it has written none."""
    times = [
        float(record["seconds"])
        for record in iter_records(RunFolder(folder).events)
        if record.get("kind") == "checkpoint_end" and isinstance(record.get("seconds"), (int, float))
    ]
    return max(times, default=None)
