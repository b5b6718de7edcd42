"""No sample is lost or doubled, and the global batch does not depend on how it is cut."""

from __future__ import annotations

from itertools import chain, islice, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsrun.errors import UsageError
from dsrun.train.base.labels import IGNORED
from dsrun.train.data.batches import FILLER, BatchSplit, GlobalBatchSampler, StreamOfBatches, WithFiller

SIZES = st.integers(1, 6)


def micro_batches(samples, micro, world, accumulation, epoch=0, **options):
    """All ranks' micro batches: [rank][micro step][sample]."""
    samplers = [
        GlobalBatchSampler(samples, BatchSplit(micro, rank, world, accumulation), seed=7, **options)
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


@pytest.mark.parametrize(("micro", "world", "accumulation"), [(12, 1, 1), (6, 2, 1), (2, 2, 3), (4, 3, 1), (1, 3, 4)])
def test_global_batches_equal_for_any_micro_batch_and_ranks(micro, world, accumulation):
    """The global batches are the same however they are cut."""
    whole = global_batches(micro_batches(53, 12, 1, 1), 1)
    assert global_batches(micro_batches(53, micro, world, accumulation), accumulation) == whole


def test_epochs_reshuffle_and_repeat_for_the_same_seed():
    first, second = micro_batches(64, 8, 1, 1, epoch=0), micro_batches(64, 8, 1, 1, epoch=1)
    assert first != second
    assert first == micro_batches(64, 8, 1, 1, epoch=0)


def test_ranks_see_different_samples():
    left, right = micro_batches(64, 8, 2, 1)
    assert not set(chain.from_iterable(left)) & set(chain.from_iterable(right))


def test_filler_only_in_short_last_global_batch():
    ranks = micro_batches(10, 2, 2, 2)
    assert all(FILLER not in batch for rank in ranks for batch in rank[:2])
    # Two samples are left: one micro step is enough, and only rank 1 has nothing in it.
    assert [len(rank) for rank in ranks] == [3, 3]
    assert ranks[1][2] == [FILLER, FILLER]


def test_drop_last_drops_short_global_batch():
    ranks = micro_batches(10, 2, 2, 2, drop_last=True)
    assert [len(rank) for rank in ranks] == [2, 2]


@given(lengths=st.lists(st.integers(1, 500), min_size=1, max_size=300))
def test_group_by_length_keeps_every_sample(lengths):
    ranks = micro_batches(len(lengths), 2, 2, 2, lengths=np.asarray(lengths))
    seen = [i for i in chain.from_iterable(chain.from_iterable(ranks)) if i != FILLER]
    assert sorted(seen) == list(range(len(lengths)))


def test_group_by_length_pads_less():
    """Grouping by length pads less, and puts the longest first."""
    lengths = [(i * 37) % 400 + 1 for i in range(800)]

    def padding(batches):
        return sum(max(lengths[i] for i in b) * len(b) - sum(lengths[i] for i in b) for b in batches)

    (grouped,) = micro_batches(800, 16, 1, 1, lengths=np.asarray(lengths))
    (mixed,) = micro_batches(800, 16, 1, 1)
    assert padding(grouped) < padding(mixed) / 10
    assert max(lengths) == max(lengths[i] for i in grouped[0])


def test_filler_repeats_a_sample_without_targets():
    rows = WithFiller([{"input_ids": [1, 2], "labels": [3, 4]}])
    assert rows[FILLER] == {"input_ids": [1, 2], "labels": [IGNORED, IGNORED]}
    assert rows[0]["labels"] == [3, 4]


class Numbers:
    """A stream of `count` rows whose ids are their numbers."""

    def __init__(self, count):
        self.total = count

    def start(self, state=None):
        return NumbersReader(self.total, state or 0)


class NumbersReader:
    def __init__(self, total, at):
        self.total = total
        self.count = at

    def __iter__(self):
        return self

    def __next__(self):
        if self.count == self.total:
            raise StopIteration
        self.count += 1
        return {"input_ids": [self.count - 1], "labels": [self.count - 1]}

    def state(self):
        return self.count


def taken(count, split, batches, *, place=None, skipped=0):
    """The first micro batches of a rank."""
    stream = StreamOfBatches(Numbers(count), split)
    stream.place, stream.skipped = place, skipped
    return list(islice(stream, batches))


def rounds(count, global_batch, round_size):
    """Micro batches of one epoch on each rank: whole global batches."""
    return -(-count // global_batch) * (global_batch // round_size)


@given(count=st.integers(1, 60), micro=SIZES, world=st.integers(1, 3), accumulation=st.integers(1, 3))
def test_stream_split_over_ranks_without_loss(count, micro, world, accumulation):
    """A stream is split over the ranks without loss, epoch after epoch."""
    splits = [BatchSplit(micro, rank, world, accumulation) for rank in range(world)]
    epoch = rounds(count, splits[0].global_batch, splits[0].round)
    shares = [taken(count, split, 2 * epoch) for split in splits]
    seen = [(each.epoch, i) for share in shares for each in share for i in each.ids]
    assert sorted(seen) == list(product((0, 1), range(count)))
    for each in chain(*shares):
        assert len(each.rows) == micro
        real = [row["labels"] for row in each.rows if row["labels"] != [IGNORED]]
        assert real == [[i] for i in each.ids]


@pytest.mark.parametrize(("micro", "world", "accumulation"), [(12, 1, 1), (6, 2, 1), (2, 2, 3), (4, 3, 1)])
def test_stream_resumes_with_other_world_size(micro, world, accumulation):
    """Any number of ranks resumes a stream at the end of a global batch."""
    whole = [sorted(each.ids) for each in taken(53, BatchSplit(12, 0, 1), 12)]
    saved_by = taken(53, BatchSplit(3, 0, 2, 2), 24)
    for step in range(12):
        places = [each.after for each in saved_by[2 * step : 2 * step + 2]]
        assert places[0] is None, "in the midst of a global batch nobody saves"
        shares = [
            taken(53, BatchSplit(micro, rank, world, accumulation), accumulation, place=places[1])
            for rank in range(world)
        ]
        if step < 11:
            assert sorted(i for each in chain(*shares) for i in each.ids) == whole[step + 1]


def test_stream_without_position_reads_up_to_it():
    split = BatchSplit(2, 1, 2)
    assert taken(53, split, 5, skipped=20) == taken(53, split, 25)[20:]


def test_empty_stream_is_an_error():
    """A stream without rows is an error and no endless loop."""
    with pytest.raises(UsageError, match="no row"):
        taken(0, BatchSplit(2, 0, 1), 1)


def test_sampler_starts_at_any_micro_batch():
    """An epoch may begin at any micro batch; the next one begins at the first again."""
    sampler = GlobalBatchSampler(53, BatchSplit(2, 0, 2), seed=7)
    whole = list(sampler)
    sampler.first = 9
    assert list(sampler) == whole[9:]
    assert list(sampler) == whole
    assert len(sampler) == len(whole)
