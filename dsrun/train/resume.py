"""Which checkpoint a run goes on from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from dsrun.errors import UsageError
from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import MANIFEST, checkpoints, is_complete

STATE_FILE = "trainer_state.json"


def find_checkpoint(resume: str, folder: RunFolder, *, world_size: int, say: Callable[[str], None]) -> Path | None:
    """The checkpoint that --resume asks for, or None to start at step 0.

    `auto` takes the newest complete one of the run folder and says which newer ones it passed over; `never` starts
    anew; anything else is a checkpoint folder. Raises UsageError where that folder is none, or was saved by another
    number of ranks.
    """
    if resume == "never":
        return None
    found = _newest(folder, say) if resume in ("auto", "true", "True") else _given(Path(resume))
    if found is None:
        return None
    saved_by = _world_size(found)
    if saved_by is not None and saved_by != world_size:
        raise UsageError(
            f"{found} was saved by {saved_by} ranks, and this run has {world_size}",
            fix=f"use --nproc {saved_by}, or --resume never to start anew",
        )
    return found


def _newest(folder: RunFolder, say: Callable[[str], None]) -> Path | None:
    complete, torn = checkpoints(folder.path)
    newest = complete[0] if complete else None
    for step, path, why in torn:
        if newest is None or step > newest[0]:
            say(f"{path.name} is passed over: {why}")
    return newest[1] if newest else None


def _given(path: Path) -> Path:
    if not (path / STATE_FILE).is_file():
        raise UsageError(f"--resume {path}: no checkpoint there (it has no {STATE_FILE})")
    if (path / MANIFEST).exists() and not is_complete(path):
        raise UsageError(f"--resume {path}: the checkpoint is incomplete", fix="choose another one")
    return path


def _world_size(checkpoint: Path) -> int | None:
    """Ranks that saved the checkpoint; None for one that dsrun did not write."""
    try:
        return int(json.loads((checkpoint / MANIFEST).read_text())["world_size"])
    except (OSError, KeyError, ValueError):
        return None
