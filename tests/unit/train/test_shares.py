"""What an epoch takes of each set of a mixture: shares, whole passes, and the same batches however they are cut."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsrun.recipe.mixture import epoch_counts
from dsrun.train.data.batches import FILLER, BatchSplit, GlobalBatchSampler, MixtureShares

SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=5)
WEIGHTS = st.floats(1e-3, 1e3)


def mixture(sizes, **options):
    names = [f"s{k}" for k in range(len(sizes))]
    weights = options.pop("weights", None)
    sets = {name: {"weight": weights[k]} if weights else {} for k, name in enumerate(names)}
    return list(epoch_counts({"sets": sets, **options}, dict(zip(names, sizes, strict=True))).values())


@st.composite
def shares(draw):
    sizes = draw(SIZES)
    weights = draw(st.lists(WEIGHTS, min_size=len(sizes), max_size=len(sizes)))
    return MixtureShares(tuple(sizes), tuple(mixture(sizes, weights=weights)))


def sampled(mixed, epoch, split=None, first=0, **options):
    """This rank's micro batches of an epoch."""
    sampler = GlobalBatchSampler(sum(mixed.sizes), split or BatchSplit(4, 0, 1), seed=7, shares=mixed, **options)
    sampler.set_epoch(epoch)
    sampler.first = first
    return list(sampler)


def without_filler(batches):
    return [sample for sample in chain.from_iterable(batches) if sample != FILLER]


@given(sizes=SIZES, data=st.data())
def test_epoch_has_as_many_samples_as_all_sets(sizes, data):
    weights = data.draw(st.lists(WEIGHTS, min_size=len(sizes), max_size=len(sizes)))
    counts = mixture(sizes, weights=weights)
    assert sum(counts) == sum(sizes)
    assert min(counts) >= 1
    quotas = [sum(sizes) * weight / sum(weights) for weight in weights]
    if min(quotas) >= 1:
        assert all(abs(count - quota) < 1 for count, quota in zip(counts, quotas, strict=True))


def test_shares_follow_weights_and_temperature():
    assert mixture([100, 300], weights=[1, 1]) == [200, 200]
    assert mixture([100, 300], weights=[3, 1]) == [300, 100]
    assert mixture([100, 300]) == [100, 300]
    assert mixture([100, 300], temperature=1.0) == [100, 300]
    # sqrt(100) : sqrt(900) is 1 : 3.
    assert mixture([100, 900], temperature=2.0) == [250, 750]
    assert mixture([100, 900], temperature=1e9) == [500, 500]
    # A set of next to no weight is not lost.
    assert mixture([10, 10], weights=[1e-9, 1]) == [1, 19]


@given(mixed=shares(), epochs=st.integers(1, 4), shuffle=st.booleans())
def test_sets_are_taken_in_whole_passes(mixed, epochs, shuffle):
    """After any epoch no sample of a set was taken more than once more often than another."""
    options = {"shuffle": shuffle}
    taken = Counter(without_filler(chain.from_iterable(sampled(mixed, epoch, **options) for epoch in range(epochs))))
    first = 0
    for size, count in zip(mixed.sizes, mixed.counts, strict=True):
        times = [taken[sample] for sample in range(first, first + size)]
        assert sum(times) == epochs * count
        assert max(times) - min(times) <= 1
        first += size
    assert set(taken) <= set(range(first))


@given(mixed=shares(), epoch=st.integers(0, 3), grouped=st.booleans())
def test_mixed_batches_equal_for_any_micro_batch_and_ranks(mixed, epoch, grouped):
    lengths = np.arange(sum(mixed.sizes)) % 7 if grouped else None

    def steps(micro, world, accumulation):
        splits = [BatchSplit(micro, rank, world, accumulation) for rank in range(world)]
        ranks = [sampled(mixed, epoch, split, lengths=lengths) for split in splits]
        assert len({len(rank) for rank in ranks}) == 1
        return [
            Counter(without_filler(chain.from_iterable(rank[at : at + accumulation] for rank in ranks)))
            for at in range(0, len(ranks[0]), accumulation)
        ]

    whole = steps(12, 1, 1)
    assert steps(6, 2, 1) == whole
    assert steps(2, 3, 2) == whole
    assert steps(1, 2, 6) == whole


@given(mixed=shares(), epoch=st.integers(0, 3), data=st.data())
def test_mixed_epoch_goes_on_at_any_micro_batch(mixed, epoch, data):
    """A resumed epoch has the rest of the samples, whatever epochs came before in this process."""
    whole = sampled(mixed, epoch)
    first = data.draw(st.integers(0, len(whole)))
    assert sampled(mixed, epoch, first=first) == whole[first:]


def test_mixed_epochs_are_shuffled_and_repeat_for_the_same_seed():
    mixed = MixtureShares((30, 10), (20, 20))
    one, two = sampled(mixed, 0), sampled(mixed, 1)
    assert one != two
    assert one == sampled(mixed, 0)
    assert any(sample >= 30 for sample in one[0] + one[1])
    # The second half of the larger set's pass comes in the second epoch.
    halves = [{sample for sample in without_filler(batches) if sample < 30} for batches in (one, two)]
    assert len(halves[0]) == 20
    assert set(range(30)) - halves[0] <= halves[1]


def test_sequential_sampling_keeps_the_order_of_each_set():
    mixed = MixtureShares((4, 2), (2, 4))
    assert without_filler(sampled(mixed, 0, shuffle=False)) == [0, 1, 4, 5, 4, 5]
    assert without_filler(sampled(mixed, 1, shuffle=False)) == [2, 3, 4, 5, 4, 5]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_orders_of_passes_differ(number):
    """Neither two passes of a set nor two sets of the same size have the same order."""
    mixed = MixtureShares((50, 50), (50, 50))
    one, other = (mixed.samples(3, epoch, shuffle=True) for epoch in (0, number))
    assert one[:50].tolist() != other[:50].tolist()
    assert one[:50].tolist() != (one[50:] - 50).tolist()
