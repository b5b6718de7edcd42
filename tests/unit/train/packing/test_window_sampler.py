"""The order of packed samples and of samples of like lengths, cut for ranks."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

from dsrun.train.data.batches import FILLER, BatchSplit, MixtureShares
from dsrun.train.packing import sampler as module
from dsrun.train.packing.sampler import BatchGrouping, WindowSampler

SAMPLES = 203
LENGTHS = np.random.default_rng(0).integers(1, 60, (SAMPLES, 1))
PACKED = BatchGrouping("packed", 12, 4)
BUDGET = BatchGrouping("budget", 12, 4)


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 60)
    monkeypatch.setattr(module, "WINDOW_BATCHES", 1)


def ranks_of(grouping, world, micro, *, epoch=0, first=0, shares=None):
    """The micro batches of each rank."""
    rows = grouping.per_step if grouping.kind == "packed" else grouping.global_batch
    found = []
    for rank in range(world):
        split = BatchSplit(micro, rank, world, -(-rows // (micro * world)))
        sampler = WindowSampler(LENGTHS, split, grouping, seed=7, shares=shares)
        sampler.set_epoch(epoch)
        sampler.first = first
        found.append(list(sampler))
        assert len(found[-1]) == len(sampler) - first
    return found


def steps_of(ranks, accumulation):
    """The samples of each step, whatever ranks and micro batches had them."""
    found = []
    for start in range(0, len(ranks[0]), accumulation):
        micro = [batch for batches in ranks for batch in batches[start : start + accumulation]]
        flat = chain.from_iterable(each if isinstance(each, list) else [each] for batch in micro for each in batch)
        found.append(sorted(each for each in flat if each != FILLER))
    return found


@pytest.mark.parametrize("grouping", [PACKED, BUDGET], ids=["packed", "like lengths"])
def test_steps_are_the_same_on_any_number_of_ranks(grouping):
    rows = grouping.per_step if grouping.kind == "packed" else grouping.global_batch
    wanted = None
    for world, micro in ((1, 1), (1, 4), (2, 1), (2, 2), (3, 1), (4, 1)):
        steps = steps_of(ranks_of(grouping, world, micro), -(-rows // (micro * world)))
        wanted = wanted or steps
        assert steps == wanted
    assert sorted(chain.from_iterable(wanted)) == list(range(SAMPLES)), "each sample once an epoch"
    assert len(wanted) == -(-SAMPLES // grouping.global_batch), "as many steps as without packing"


@pytest.mark.parametrize("grouping", [PACKED, BUDGET], ids=["packed", "like lengths"])
def test_resumed_pass_goes_on_with_the_same_batches(grouping):
    whole = ranks_of(grouping, 2, 2, epoch=1)
    for first in (1, 7, len(whole[0]) - 1):
        assert ranks_of(grouping, 2, 2, epoch=1, first=first) == [batches[first:] for batches in whole]


def test_windows_before_a_resumed_step_are_not_packed(monkeypatch):
    packed = []

    def counted(lengths, rows):
        packed.append(len(lengths))
        return [np.array(part) for part in np.array_split(np.arange(len(lengths)), rows)]

    monkeypatch.setattr(module, "pack_rows", counted)
    split = BatchSplit(4, 0, 1, 1)
    sampler = WindowSampler(LENGTHS, split, PACKED, seed=7)
    sampler.first = len(sampler) - 1
    assert len(list(sampler)) == 1
    assert len(packed) == 1


@pytest.mark.parametrize("grouping", [PACKED, BUDGET], ids=["packed", "like lengths"])
def test_each_epoch_has_another_order(grouping):
    first, second = (steps_of(ranks_of(grouping, 1, 4, epoch=epoch), 1) for epoch in (0, 1))
    assert not {*map(tuple, first)} & {*map(tuple, second)}


def test_rows_of_a_batch_are_about_as_wide_as_each_other():
    batches = [[int(LENGTHS[row].sum()) for row in batch] for batch in ranks_of(PACKED, 1, 4)[0]]
    assert sum(map(sum, batches)) / sum(len(batch) * max(batch) for batch in batches) > 0.98


def test_samples_of_a_mixture_come_as_often_as_its_shares_say():
    shares = MixtureShares((100, 103), (150, 53))
    samples = list(chain.from_iterable(steps_of(ranks_of(PACKED, 1, 4, shares=shares), 1)))
    assert len(samples) == SAMPLES
    assert sum(sample < 100 for sample in samples) == 150


def test_other_number_of_ranks_packs_the_samples_of_a_step_anew():
    """On three ranks, the samples of four rows are in six."""
    ranks = ranks_of(PACKED, 3, 1)
    assert {len(batch) for batches in ranks for batch in batches} == {1}
    assert sum(not row for batches in ranks for batch in batches for row in batch) == 0
