"""What an attempt changes after earlier ones failed, and never the global batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsrun.launch.memory_fallback import MemoryFallback
from dsrun.recipe.batch import batch_plan
from dsrun.recipe.resolve import resolve
from dsrun.train.decide_plan import (
    clear_fallbacks,
    fallback_notice,
    read_memory_fallback,
    with_fallback,
    with_smaller_batch,
)
from dsrun.train.loop.nan import MOST_SKIPPED_STEPS, SKIP_FILE, NanGuard, steps_to_skip


def recipe(*flags):
    return resolve(["--model", "demo-t5", *flags], Path())


def plan(micro, accumulation=1, ranks=2):
    return batch_plan(
        global_batch_size=micro * accumulation * ranks, micro_batch_size=micro, accumulation=accumulation,
        world_size=ranks, default_micro=8,
    )  # fmt: skip


@pytest.mark.parametrize("micro", [1, 6, 7, 8])
@pytest.mark.parametrize("halvings", [0, 1, 2, 9])
def test_memory_fallback_shrinks_micro_batch(micro, halvings):
    """The global batch stays, and the micro batch shrinks."""
    before = plan(micro, 3)
    after = with_smaller_batch(before, MemoryFallback(halvings=halvings))
    assert after.micro_batch * after.accumulation * after.world_size == before.global_batch
    assert after.micro_batch <= max(1, micro // 2**halvings)
    assert (fallback_notice(before, after, MemoryFallback(halvings=halvings)) is None) == (after == before)


def test_memory_fallback_read_from_run_folder(tmp_path):
    """The fallback is read unless the user refuses it or starts anew."""
    wanted = MemoryFallback(halvings=2, recompute=True, offload="cpu")
    (tmp_path / "remedy.json").write_text(json.dumps(wanted.as_dict()))
    assert read_memory_fallback(tmp_path, recipe()) == wanted
    assert read_memory_fallback(tmp_path, recipe("--no-remedy")) == MemoryFallback()
    assert read_memory_fallback(tmp_path, recipe("--resume", "never")) == MemoryFallback()
    assert read_memory_fallback(tmp_path / "other", recipe()) == MemoryFallback()


@pytest.mark.parametrize("text", ["[", "[" * 100_000, '{"version": 99}', ""])
def test_damaged_memory_fallback_file_does_not_stop_run(tmp_path, text):
    (tmp_path / "remedy.json").write_text(text)
    assert read_memory_fallback(tmp_path, recipe()) == MemoryFallback()


def test_memory_fallback_sets_recompute_and_offload_flags():
    """Recomputation and offload become flags."""
    changed = with_fallback(recipe("--zero", "2"), MemoryFallback(recompute=True, offload="cpu"))
    assert changed.hf["gradient_checkpointing"] is True
    assert changed.spec.offload == "cpu"
    assert with_fallback(recipe("--zero", "0"), MemoryFallback(offload="cpu")).spec.offload == "none"


def rolling_back(run, known, rank=0):
    return NanGuard("rollback", run, rank=rank, skipped_steps=known).goes_back


def test_skipped_steps_recorded_and_limited(tmp_path):
    """A step is skipped once, and not too many are."""
    known = frozenset({3})
    wish = rolling_back(tmp_path, known)
    assert not wish(3)
    assert wish(8)
    noted = []
    assert steps_to_skip(tmp_path, recipe(), noted.append) == {3, 8}
    assert steps_to_skip(tmp_path, recipe("--resume", "never"), noted.append) == frozenset()
    assert noted == []
    assert not rolling_back(tmp_path, frozenset(range(MOST_SKIPPED_STEPS)))(99)


@pytest.mark.parametrize(
    "text", ["", "\xff", "{}", "[]", '{"version": 1, "steps": 3}', '{"version": 1, "steps": [0]}', '{"steps": [3]}']
)
def test_damaged_file_of_skipped_steps_is_noted(tmp_path, text):
    """As a damaged remedy.json is: the run goes on without it."""
    (tmp_path / SKIP_FILE).write_bytes(text.encode("latin-1"))
    noted = []
    assert steps_to_skip(tmp_path, recipe(), noted.append) == frozenset()
    assert len(noted) == 1


def test_skipped_steps_not_written_by_other_ranks(tmp_path):
    assert rolling_back(tmp_path, frozenset(), rank=1)(8)
    assert not list(tmp_path.iterdir())


def test_fresh_start_forgets_memory_fallbacks(tmp_path):
    rolling_back(tmp_path, frozenset())(8)
    clear_fallbacks(tmp_path)
    assert not list(tmp_path.iterdir())
