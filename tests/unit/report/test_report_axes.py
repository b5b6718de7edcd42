"""Axes of charts: round ticks around the values, written so that they differ."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsrun.report.charts import linear_axis, log_axis, step_axis

# What dsrun.report.panels lets through.
SIZES = st.floats(min_value=1e-300, max_value=1e300)
NUMBERS = st.just(0.0) | SIZES | SIZES.map(lambda size: -size)


@pytest.mark.parametrize(
    ("low", "high", "zero", "labels"),
    [
        (0.03, 5.2, False, ("0", "2", "4", "6")),
        (0, 3e-4, True, ("0", "1e-4", "2e-4", "3e-4")),
        (20_000, 43_000, True, ("0", "10k", "20k", "30k", "40k", "50k")),
        (97.1, 99.4, False, ("97.0", "97.5", "98.0", "98.5", "99.0", "99.5")),
        (0, 2.9e6, True, ("0", "1M", "2M", "3M")),
        (0, 0, True, ("0", "0.2", "0.4", "0.6", "0.8", "1.0")),
        (0, 0, False, ("0", "0.2", "0.4", "0.6", "0.8", "1.0")),
    ],
)
def test_linear_ticks(low: float, high: float, zero: bool, labels: tuple[str, ...]) -> None:
    assert linear_axis(low, high, zero=zero).labels() == labels


@pytest.mark.parametrize("most", [1.0, 100.0])
@given(share=st.floats(min_value=0, max_value=1), other=st.floats(min_value=0, max_value=1))
def test_axis_of_a_share_stays_within_what_can_be(most: float, share: float, other: float) -> None:
    """From 0, at most to the largest that can be, and never so near that noise looks like progress."""
    low, high = sorted((share * most, other * most))
    axis = linear_axis(low, high, zero=True, most=most)
    assert axis.low == 0
    assert max(high, most / 10) <= axis.high * (1 + 1e-9) <= most * (1 + 1e-6)


@given(SIZES, SIZES)
def test_axis_is_not_below_zero_where_no_value_is(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert linear_axis(low, high).low >= 0


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0.03, 5.2, ("0.02", "0.05", "0.1", "0.2", "0.5", "1", "2", "5", "10")),
        (1e-3, 900, ("0.001", "0.01", "0.1", "1", "10", "100", "1,000")),
        (1e-9, 1e9, ("1e-9", "1e-6", "0.001", "1", "1,000", "1M", "1G")),
    ],
)
def test_logarithmic_ticks(low: float, high: float, labels: tuple[str, ...]) -> None:
    assert log_axis(low, high).labels() == labels


def test_step_ticks_are_whole_and_end_with_the_run() -> None:
    axis = step_axis(5, 400)
    assert axis.labels() == ("100", "200", "300", "400")
    assert (axis.place(5), axis.place(400)) == (0, 1)
    assert step_axis(3, 3).labels() == ("3", "4")
    assert step_axis(1, 100_000).labels() == ("20k", "40k", "60k", "80k", "100k")


@given(NUMBERS, NUMBERS, st.booleans())
def test_linear_axis_holds_its_values(one: float, other: float, zero: bool) -> None:
    low, high = sorted((one, other))
    axis = linear_axis(low, high, zero=zero)
    assert axis.low < axis.high
    assert all(math.isfinite(tick) for tick in axis.ticks)
    assert len(set(axis.labels())) == len(axis.ticks) <= 20
    assert 0 <= axis.place(low) <= axis.place(high) <= 1


@given(SIZES, SIZES)
def test_logarithmic_axis_holds_its_values(one: float, other: float) -> None:
    low, high = sorted((one, other))
    axis = log_axis(low, high)
    assert axis.low < axis.high
    assert len(axis.ticks) <= 20
    assert len(set(axis.labels())) == len(axis.ticks)
    assert 0 <= axis.place(low) <= axis.place(high) <= 1
