"""Values of records that another program wrote."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dsrun.runs.goodput import goodput
from dsrun.runs.records import finite, seconds_of, whole


@pytest.mark.parametrize(
    ("value", "number"),
    [(2, 2.0), (0.5, 0.5), (10**400, None), (-(10**400), None), (math.nan, None), (math.inf, None), (True, None),
     ("2", None), (None, None)],
)  # fmt: skip
def test_only_finite_numbers_are_figures(value: Any, number: float | None) -> None:
    assert finite(value) == number


def test_whole_numbers_and_times() -> None:
    assert [whole(value) for value in (3, True, 3.0, None, 2**63 - 1, 2**63, -(2**63))] == [
        3, None, None, None, 2**63 - 1, None, None,
    ]  # fmt: skip
    assert seconds_of({"time": "1970-01-01T00:01:00Z"}) == 60
    assert [seconds_of({"time": time}) for time in ("yesterday", None, 5)] == [None] * 3


def test_huge_numbers_of_an_event_count_as_none() -> None:
    start = {"kind": "start", "time": "2026-11-25T10:00:00Z", "starting_s": 10**400, "attempt": 10**400}
    assert goodput([start]).total == 0
