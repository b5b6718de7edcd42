"""Whether a run that was disturbed ended as if nothing had been: one oracle for all faults in all phases.

Pure comparison of two run folders; it starts nothing. The undisturbed one must have been made with the same flags,
`--sample-ledger` among them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import verify
from dsrun.runs.records import iter_records, revive
from tests.sample_ledger import ledgers, not_once, seen

STEP_KEYS = ("loss", "grad_norm", "lr", "tokens")
"""What must be the same in each step's record; the others are times and memory."""

# Names that files and folders have while they are made, in dsrun, torch, safetensors and DeepSpeed.
_TEMPORARY = ("*.partial", "*.tmp", "*.tmp-*", "tmp-*", "tmp_*", ".saving/*", ".*.tmp")
_SHOWN = 3


def findings(disturbed: Path, undisturbed: Path, *, samples: int | None = None, relative: float = 0.0) -> list[str]:
    """What is wrong with the disturbed run, in words; [] when nothing is.

    `samples` is the size of the training set. `relative` above 0 is for a run that went on at another world size:
    figures may differ by that much, and weights are not compared, as sums were formed in another order.
    """
    return [
        *_end(disturbed),
        *([] if relative else _weights(disturbed, undisturbed)),
        *_curves(disturbed, undisturbed, relative),
        *_ledgers(disturbed, undisturbed, samples),
        *_checkpoints(disturbed),
        *(f"left behind: {path.relative_to(disturbed)}" for path in temporary(disturbed)),
    ]


def curve(run: Path) -> dict[int, dict[str, Any]]:
    """The figures of each logged step; of a step that was done more than once the last ones."""
    records = (revive(record) for record in iter_records(run / "metrics.jsonl"))
    return {record["step"]: {key: record.get(key) for key in STEP_KEYS} for record in records if "loss" in record}


def evaluations(run: Path) -> dict[int, float]:
    """The validation loss by step; the last where it was measured more than once."""
    records = (revive(record) for record in iter_records(run / "metrics.jsonl"))
    return {record["step"]: record["eval_loss"] for record in records if "eval_loss" in record}


def temporary(run: Path) -> list[Path]:
    """What should not be there when nobody writes: files and folders on their way to another name."""
    return sorted({path for pattern in _TEMPORARY for path in run.rglob(pattern)})


def _end(run: Path) -> Iterator[str]:
    if not (run / "FINISHED").exists():
        yield "it did not finish: FINISHED is missing"
    if not any((run / "model").glob("*.safetensors")):
        yield "there is no final model"


def _weights(disturbed: Path, undisturbed: Path) -> Iterator[str]:
    ours, theirs = (
        {path.name: path for path in sorted((run / "model").glob("*.safetensors"))} for run in (disturbed, undisturbed)
    )
    if ours and ours.keys() != theirs.keys():
        yield f"the final model's files are {', '.join(ours)} instead of {', '.join(theirs)}"
    for name in ours.keys() & theirs.keys():
        if ours[name].read_bytes() != theirs[name].read_bytes():
            yield f"the final weights differ: model/{name}"


def _curves(disturbed: Path, undisturbed: Path, relative: float) -> Iterator[str]:
    ours, theirs = curve(disturbed), curve(undisturbed)
    if not theirs:
        yield "the undisturbed run has no losses to compare with"
    yield from _steps("logged", ours, theirs)
    differing = [
        f"step {step}: {key} {ours[step][key]!r} instead of {theirs[step][key]!r}"
        for step in sorted(ours.keys() & theirs.keys())
        for key in STEP_KEYS
        if not _equal(ours[step][key], theirs[step][key], relative)
    ]
    yield from _first(differing)
    ours_evaluated, theirs_evaluated = evaluations(disturbed), evaluations(undisturbed)
    yield from _steps("evaluated", ours_evaluated, theirs_evaluated)
    yield from _first(
        [
            f"step {step}: eval_loss {ours_evaluated[step]!r} instead of {theirs_evaluated[step]!r}"
            for step in sorted(ours_evaluated.keys() & theirs_evaluated.keys())
            if not _equal(ours_evaluated[step], theirs_evaluated[step], relative)
        ]
    )


def _ledgers(disturbed: Path, undisturbed: Path, samples: int | None) -> Iterator[str]:
    ours, theirs = ledgers(disturbed), ledgers(undisturbed)
    yield from not_once(ours, samples=samples)
    if ours and theirs and seen(ours) != seen(theirs):
        yield "it saw other samples than the undisturbed run"


def _checkpoints(run: Path) -> Iterator[str]:
    checkpoints = RunFolder(run).checkpoints()
    if not checkpoints:
        yield "there is no checkpoint"
    for _, checkpoint in checkpoints:
        yield from (f"{checkpoint.name}: {damage}" for damage in verify(checkpoint)[:1])


def _steps(what: str, ours: dict[int, Any], theirs: dict[int, Any]) -> Iterator[str]:
    missing, surplus = sorted(theirs.keys() - ours.keys()), sorted(ours.keys() - theirs.keys())
    if missing:
        yield f"steps that were not {what}: {', '.join(map(str, missing))}"
    if surplus:
        yield f"steps that should not have been {what}: {', '.join(map(str, surplus))}"


def _first(found: list[str]) -> list[str]:
    rest = len(found) - _SHOWN
    return found[:_SHOWN] + ([f"… and {rest} more like these"] if rest > 0 else [])


def _equal(ours: Any, theirs: Any, relative: float) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    if math.isnan(ours) or math.isnan(theirs):
        return math.isnan(ours) and math.isnan(theirs)
    return math.isclose(ours, theirs, rel_tol=relative, abs_tol=0.0)
