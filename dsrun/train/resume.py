"""Which checkpoint a run goes on from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from dsrun.errors import UsageError
from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import MANIFEST, is_complete, read_manifest, survey

STATE_FILE = "trainer_state.json"


def find_checkpoint(
    resume: str,
    folder: RunFolder,
    *,
    world_size: int,
    stage: int,
    model_type: str,
    say: Callable[[str], None],
) -> Path | None:
    """The checkpoint that --resume asks for, or None to start at step 0.

    `auto` takes the newest complete one of the run folder and says which newer ones it passed over; `never` starts
    anew; anything else is a checkpoint folder. Raises UsageError where that folder is none, or was saved by another
    number of ranks, under another ZeRO stage or from another kind of model.
    """
    if resume == "never":
        return None
    found = _newest(folder, say) if resume in ("auto", "true", "True") else _given(Path(resume))
    if found is None:
        return None
    facts = _facts(found)
    saved_by = facts.get("world_size", world_size)
    if saved_by != world_size:
        raise UsageError(
            f"{found} was saved by {saved_by} ranks, and this run has {world_size}",
            fix=f"use --nproc {saved_by}, or --resume never to start anew",
        )
    saved_under = facts.get("zero_stage", stage)
    if saved_under != stage:
        raise UsageError(
            f"{found} was saved under ZeRO-{saved_under}, and this run uses ZeRO-{stage}",
            fix=f"use --zero {saved_under}, or --resume never to start anew",
        )
    saved_type = _model_type(found)
    if saved_type not in (None, model_type):
        raise UsageError(
            f"{found} holds a {saved_type} model, and this run trains a {model_type} model",
            fix="choose another --output, or --resume never to start anew",
        )
    say(f"resuming from {found}")
    return found


def set_earlier_run_aside(folder: RunFolder, now: datetime, *, discard: bool) -> Path | None:
    """Make room for --resume never: an earlier run's checkpoints must not be taken for this run's by a later resume.

    Its results move into `earlier-<time>/` of the run folder, or are deleted with `discard` (--force); its logs stay.
    Returns the folder they moved to, if any did.
    """
    names = [path.name for _, path in folder.checkpoints()]
    names += ["model", "adapter", "metrics.jsonl", "events.jsonl", "run.json", "console.log", "FINISHED"]
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


def _facts(checkpoint: Path) -> dict[str, Any]:
    """What dsrun noted when it saved the checkpoint; nothing for one that it did not write."""
    manifest = read_manifest(checkpoint)
    return dict(manifest["extra"]) if manifest else {}


def _model_type(checkpoint: Path) -> str | None:
    """The architecture of the weights; None for a checkpoint of adapters, which has no config."""
    config = checkpoint / "config.json"
    return json.loads(config.read_text()).get("model_type") if config.is_file() else None
