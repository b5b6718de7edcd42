"""Which checkpoint a run goes on from."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from dsrun.errors import UsageError
from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import MANIFEST, is_complete, read_manifest, survey

STATE_FILE = "trainer_state.json"


def find_checkpoint(
    resume: str, folder: RunFolder, *, world_size: int, say: Callable[[str], None]
) -> Path | None:
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


def set_earlier_run_aside(folder: RunFolder, now: datetime, *, discard: bool) -> Path | None:
    """Make room for --resume never: an earlier run's checkpoints must not be taken for this run's by a later resume.

    Its results move into `earlier-<time>/` of the run folder, or are deleted with `discard` (--force); its logs stay.
    Returns the folder they moved to, if any did.
    """
    names = [path.name for _, path in folder.checkpoints()]
    names += ["model", "adapter", "metrics.jsonl", "events.jsonl", "run.json", "console.log"]
    names += [path.name for path in folder.path.glob("predictions-*.jsonl")]
    results = [path for path in (folder.path / name for name in names) if path.exists()]
    aside = folder.path / f"earlier-{now:%Y%m%d-%H%M%S}"
    if results and not discard:
        aside.mkdir()
    for path in results:
        if not discard:
            path.rename(aside / path.name)
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return aside if results and not discard else None


def _newest(folder: RunFolder, say: Callable[[str], None]) -> Path | None:
    found = survey(folder)
    for finding in found.passed_over:
        say(f"{finding.message}; passed over")
    return found.complete[0][1] if found.complete else None


def _given(path: Path) -> Path:
    if not (path / STATE_FILE).is_file():
        raise UsageError(f"--resume {path}: no checkpoint there (it has no {STATE_FILE})")
    if (path / MANIFEST).exists() and not is_complete(path):
        raise UsageError(f"--resume {path}: the checkpoint is incomplete", fix="choose another one")
    return path


def _world_size(checkpoint: Path) -> int | None:
    """Ranks that saved the checkpoint; None for one that dsrun did not write."""
    manifest = read_manifest(checkpoint)
    return manifest["extra"].get("world_size") if manifest else None
