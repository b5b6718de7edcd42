"""How this attempt differs from what was asked for, so that it does not end as an earlier one did.

The supervisor writes `remedy.json` when memory ran out; the workers themselves write `skip-steps.json` when a step was
NaN and the run goes back. Both stay in the run folder, for every later start in it but one with --resume never.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dsrun.launch.supervisor.policy import MemoryFallback, shrink
from dsrun.recipe.batch import BatchPlan
from dsrun.recipe.resolve import Recipe
from dsrun.runs.records import write_json_atomic

REMEDY_FILE = "remedy.json"
SKIP_FILE = "skip-steps.json"
MOST_SKIPPED_STEPS = 10


def read_memory_fallback(run: Path, recipe: Recipe) -> MemoryFallback:
    """The remedy in force for a start in `run`. Raises UsageError for a file that is not the supervisor's."""
    if recipe.spec.resume == "never" or not recipe.spec.remedy:
        return MemoryFallback()
    try:
        found = json.loads((run / REMEDY_FILE).read_text())
    except FileNotFoundError:
        return MemoryFallback()
    except ValueError:
        found = {}
    return MemoryFallback.from_dict(found if isinstance(found, dict) else {})


def with_fallback(recipe: Recipe, remedy: MemoryFallback) -> Recipe:
    """The recipe with the recomputation and offloading of `remedy`; ZeRO-0 cannot offload."""
    if remedy.recompute:
        recipe = replace(recipe, hf=recipe.hf | {"gradient_checkpointing": True})
    if remedy.offload != "none" and recipe.spec.zero != "0" and not recipe.hf.get("deepspeed"):
        recipe = replace(recipe, spec=replace(recipe.spec, offload=remedy.offload))
    return recipe


def with_smaller_batch(batch: BatchPlan, remedy: MemoryFallback) -> BatchPlan:
    """The batch with a smaller micro batch and more accumulation steps; the global batch stays."""
    micro, accumulation = shrink(batch.micro_batch, batch.accumulation, remedy.halvings)
    return replace(batch, micro_batch=micro, accumulation=accumulation)


def notice(before: BatchPlan, after: BatchPlan, remedy: MemoryFallback) -> str | None:
    """What the remedy changes, in one line; None where nothing is."""
    changes = []
    if after != before:
        changes.append(
            f"micro batch {after.micro_batch} instead of {before.micro_batch}, {after.accumulation} accumulation steps"
        )
    changes += ["activations are recomputed"] if remedy.recompute else []
    changes += ["optimizer states on the host"] if remedy.offload != "none" else []
    if not changes:
        return None
    return f"memory ran out before: {', '.join(changes)}; the global batch stays {after.global_batch}"


def steps_to_skip(run: Path, recipe: Recipe) -> frozenset[int]:
    """The optimizer steps, counted from 1, that are not to be applied."""
    if recipe.spec.resume == "never":
        return frozenset()
    try:
        return frozenset(map(int, json.loads((run / SKIP_FILE).read_text())["steps"]))
    except (OSError, ValueError, KeyError, TypeError):
        return frozenset()


def rollback_recorder(run: Path, known: frozenset[int], *, main: bool) -> Callable[[int], bool]:
    """What to do when --on-nan rollback meets a step: write it down (`main`: rank 0 does), and tell whether the run may
    go back for it. It may not for a step that was passed over already, nor for ever."""

    def wish(step: int) -> bool:
        if step in known or len(known) >= MOST_SKIPPED_STEPS:
            return False
        if main:
            write_json_atomic(run / SKIP_FILE, {"version": 1, "steps": sorted(known | {step})})
        return True

    return wish


def clear(run: Path) -> None:
    """--resume never: the run starts as it was asked for."""
    for name in (REMEDY_FILE, SKIP_FILE):
        (run / name).unlink(missing_ok=True)
