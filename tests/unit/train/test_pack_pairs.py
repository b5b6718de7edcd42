"""Pairs of source and target that share a row: none is lost, and both sides of the rows are of about one length."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from dsrun.train.packing.assign import pack_pairs

LENGTHS = st.integers(1, 40)


def pairs_of(correlation, samples=10_000):
    """Log-normal tokens of sources and targets, int [samples] each."""
    rng = np.random.default_rng(1)
    normal = rng.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]], samples)
    return np.maximum(1, np.round([60, 45] * np.exp(0.6 * normal))).astype(np.int64).T


@pytest.mark.parametrize("times", [1.0, 1.5], ids="row-{}-times-longest".format)
@pytest.mark.parametrize(("correlation", "least"), [(0.5, 0.975), (0.95, 0.99)])
def test_cells_of_packed_pairs_hold_tokens(correlation, least, times):
    """Also where all rows are padded to the longest, at least this share of both sides is tokens; rows are on average
    1.0 or 1.5 times as long as the longest sample."""
    sides = pairs_of(correlation)
    rows = int((sides.sum(axis=1) / (times * sides.max(axis=1))).min())
    packed = pack_pairs(*sides, rows)
    longest = [max(side[row].sum() for row in packed) for side in sides]
    assert sides.sum() / (rows * sum(longest)) >= least


@given(st.lists(st.tuples(LENGTHS, LENGTHS), min_size=1, max_size=60), st.integers(1, 70))
def test_no_pair_is_lost_or_doubled(pairs, rows):
    sources, targets = np.array(pairs).T
    packed = pack_pairs(sources, targets, rows)
    assert sorted(np.concatenate(packed).tolist()) == list(range(len(pairs)))
    assert len(packed) == rows
    assert sum(len(row) == 0 for row in packed) == max(0, rows - len(pairs))
    assert [row.tolist() for row in pack_pairs(sources, targets, rows)] == [row.tolist() for row in packed]


def test_long_source_shares_a_row_with_long_target():
    """A row is judged by both sides: two long sources do not come together while the targets would."""
    packed = pack_pairs(np.array([90, 10, 90, 10]), np.array([10, 90, 10, 90]), 2)
    assert {frozenset((row % 2).tolist()) for row in packed} == {frozenset({0, 1})}
