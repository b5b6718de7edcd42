"""No sample is lost or doubled, and the global batch does not depend on how it is cut."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsrun.train.batches import FILLER, IGNORED, GlobalBatchSampler, Split, StreamOfBatches, WithFiller

SIZES = st.integers(1, 6)


def micro_batches(samples, micro, world, accumulation, epoch=0, **options):
    """All ranks' micro batches: [rank][micro step][sample]."""
    samplers = [
        GlobalBatchSampler(samples, Split(micro, rank, world, accumulation), seed=7, **options)
        for rank in range(world)
    ]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return [list(sampler) for sampler in samplers]


def global_batches(ranks, accumulation):
    """The real samples of each optimizer step, as sets."""
    steps = max(len(rank) for rank in ranks)
    return [
        {i for rank in ranks for micro in rank[start : start + accumulation] for i in micro if i != FILLER}
        for start in range(0, steps, accumulation)
    ]


@given(
    samples=st.integers(1, 200),
    micro=SIZES,
    world=st.integers(1, 3),
    accumulation=SIZES,
    shuffle=st.booleans(),
)
def test_every_sample_is_seen_exactly_once(samples, micro, world, accumulation, shuffle):
    ranks = micro_batches(samples, micro, world, accumulation, shuffle=shuffle)
    seen = [i for i in chain.from_iterable(chain.from_iterable(ranks)) if i != FILLER]
    assert sorted(seen) == list(range(samples))
    assert len({len(rank) for rank in ranks}) == 1, "ranks that run out early hang the others in a collective"
    assert {len(batch) for rank in ranks for batch in rank} == {micro}


@pytest.mark.parametrize(
    ("micro", "world", "accumulation"), [(12, 1, 1), (6, 2, 1), (2, 2, 3), (4, 3, 1), (1, 3, 4)]
)
def test_the_global_batches_are_the_same_however_they_are_cut(micro, world, accumulation):
    whole = global_batches(micro_batches(53, 12, 1, 1), 1)
    assert global_batches(micro_batches(53, micro, world, accumulation), accumulation) == whole


def test_epochs_reshuffle_and_repeat_for_the_same_seed():
    first, second = micro_batches(64, 8, 1, 1, epoch=0), micro_batches(64, 8, 1, 1, epoch=1)
    assert first != second
    assert first == micro_batches(64, 8, 1, 1, epoch=0)


def test_ranks_see_different_samples():
    left, right = micro_batches(64, 8, 2, 1)
    assert not set(chain.from_iterable(left)) & set(chain.from_iterable(right))


def test_filler_only_where_the_last_global_batch_is_short():
    ranks = micro_batches(10, 2, 2, 2)
    assert all(FILLER not in batch for rank in ranks for batch in rank[:2])
    # Two samples are left: one micro step is enough, and only rank 1 has nothing in it.
    assert [len(rank) for rank in ranks] == [3, 3]
    assert ranks[1][2] == [FILLER, FILLER]


def test_drop_last_leaves_the_short_global_batch_out():
    ranks = micro_batches(10, 2, 2, 2, drop_last=True)
    assert [len(rank) for rank in ranks] == [2, 2]


@given(lengths=st.lists(st.integers(1, 500), min_size=1, max_size=300))
def test_grouping_by_length_keeps_every_sample(lengths):
    ranks = micro_batches(len(lengths), 2, 2, 2, lengths=lengths)
    seen = [i for i in chain.from_iterable(chain.from_iterable(ranks)) if i != FILLER]
    assert sorted(seen) == list(range(len(lengths)))


def test_grouping_by_length_pads_less_and_puts_the_longest_first():
    lengths = [(i * 37) % 400 + 1 for i in range(800)]

    def padding(batches):
        return sum(max(lengths[i] for i in b) * len(b) - sum(lengths[i] for i in b) for b in batches)

    (grouped,) = micro_batches(800, 16, 1, 1, lengths=lengths)
    (mixed,) = micro_batches(800, 16, 1, 1)
    assert padding(grouped) < padding(mixed) / 10
    assert max(lengths) == max(lengths[i] for i in grouped[0])


def test_filler_repeats_a_sample_without_targets():
    rows = WithFiller([{"input_ids": [1, 2], "labels": [3, 4]}])
    assert rows[FILLER] == {"input_ids": [1, 2], "labels": [IGNORED, IGNORED]}
    assert rows[0]["labels"] == [3, 4]


@given(count=st.integers(1, 60), micro=SIZES, world=st.integers(1, 3))
def test_a_stream_is_shared_out_without_loss(count, micro, world):
    rows = [{"input_ids": [i], "labels": [i]} for i in range(count)]
    shares = [list(StreamOfBatches(rows, Split(micro, rank, world))) for rank in range(world)]
    seen = [
        row["labels"][0] for share in shares for batch in share for row in batch if row["labels"] != [IGNORED]
    ]
    assert sorted(seen) == list(range(count))
    assert len({len(share) for share in shares}) == 1
