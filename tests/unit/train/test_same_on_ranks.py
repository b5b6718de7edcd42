"""Ranks that found different things stop at once, instead of waiting for each other for ever."""

from __future__ import annotations

import pytest

from dsrun.errors import ToolError
from dsrun.train.base import distributed
from dsrun.train.base.distributed import STALE_FOLDER, assert_same_on_all_ranks


@pytest.fixture
def other_rank(monkeypatch):
    """Rank 1 found 'like lengths'."""
    monkeypatch.setattr(distributed, "all_gather_object", lambda mine: [mine, "like lengths"])


def test_difference_names_both_ranks_and_the_fix(other_rank):
    with pytest.raises(ToolError, match="differ in their batches: packed on rank 0, like lengths on rank 1") as caught:
        assert_same_on_all_ranks("batches", "packed", fix="--packing off")
    assert caught.value.fix == "--packing off"


def test_what_came_from_the_run_folder_is_read_again(other_rank):
    with pytest.raises(ToolError) as caught:
        assert_same_on_all_ranks("batch", "packed")
    assert caught.value.fix == STALE_FOLDER


def test_equal_ranks_go_on(other_rank):
    assert_same_on_all_ranks("batches", "like lengths")
