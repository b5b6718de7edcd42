"""Which samples share a row, and which a step."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsrun.train.packing.assign import allotted, equal_cost_steps, pack_rows


def instruction_lengths(count, seed=0):
    """Log-normal with mean 90 and 99th percentile 432, cut at 512, as of instructions and their answers."""
    deviation = 0.817
    lengths = np.random.default_rng(seed).lognormal(math.log(432) - 2.326 * deviation, deviation, count)
    return np.clip(np.rint(lengths), 4, 512).astype(np.int64)


def widths(lengths, rows):
    return np.array([lengths[row].sum() for row in rows])


def test_packed_rows_hold_over_999_in_1000_real_tokens():
    lengths = instruction_lengths(10_000)
    rows = pack_rows(lengths, len(lengths) // 6)
    found = np.sort(widths(lengths, rows))[::-1]
    # As wide as the widest of its micro batch of eight rows of like width.
    cells = sum(len(part) * part[0] for part in np.array_split(found, len(found) // 8))
    assert lengths.sum() / cells >= 0.999


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(1, 30))
def test_every_sample_is_in_one_row(lengths, rows):
    found = pack_rows(np.array(lengths), rows)
    assert len(found) == rows
    assert sorted(np.concatenate(found)) == list(range(len(lengths)))
    assert sum(not len(row) for row in found) == max(0, rows - len(lengths))


def test_sample_longer_than_the_rows_has_one_to_itself():
    lengths = np.array([100, *[10] * 40])
    rows = pack_rows(lengths, 11)
    assert [0] in [row.tolist() for row in rows]
    assert sorted(widths(lengths, rows)) == [40] * 10 + [100]


@pytest.mark.parametrize("correlation", [None, 0.9])
def test_steps_of_like_lengths_waste_little(correlation):
    """At least 92% of the cells are tokens, 96% of sources and targets that are about as long; random batches of eight
    have a third."""
    first = instruction_lengths(10_000)
    lengths = first[:, None]
    if correlation:
        noise = np.random.default_rng(1).lognormal(0, 0.2, len(first))
        lengths = np.stack([first, np.maximum(1, np.rint(first * noise)).astype(np.int64)], axis=1)
    steps = equal_cost_steps(lengths, len(lengths) // 64, least=8)
    assert len(steps) == len(lengths) // 64
    assert sorted(np.concatenate(steps)) == list(range(len(lengths)))
    assert min(map(len, steps)) >= 8
    micro = [part for step in steps for part in np.array_split(step, 8)]
    cells = sum(len(part) * lengths[part].max(axis=0).sum() for part in micro)
    assert lengths.sum() / cells >= (0.96 if correlation else 0.92)
    cost = [len(step) * lengths[step].max(axis=0).sum() for step in steps]
    assert np.quantile(cost, 0.9) < 1.5 * np.median(cost), "steps take about as long"


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.data())
def test_steps_of_like_lengths_hold_every_sample_once(lengths, data):
    steps = data.draw(st.integers(1, len(lengths)))
    least = data.draw(st.integers(1, 8))
    found = equal_cost_steps(np.array(lengths)[:, None], steps, least=least)
    assert len(found) == steps
    assert sorted(np.concatenate(found)) == list(range(len(lengths)))
    assert all(len(step) for step in found)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(1, 99))
def test_steps_are_divided_over_windows_without_rest(weights, total):
    counts = allotted(np.array(weights), total)
    assert counts.sum() == total
    assert (counts >= 0).all()
