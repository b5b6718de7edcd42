"""How often a run should save."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsrun.runs.goodput import HOUR, failures, mean_time_between_failures, save_interval
from tests.unit.runs.test_goodput import at


def test_save_interval_young_formula_for_short_saves() -> None:
    assert save_interval(1, 200_000) == pytest.approx(math.sqrt(2 * 200_000), rel=0.002)


def test_save_interval_daly_correction_for_long_saves() -> None:
    """Daly 2006, eq. 37, worked by hand for δ = 300 s and M = 6 h."""
    ratio = 300 / (2 * 6 * HOUR)
    assert save_interval(300, 6 * HOUR) == pytest.approx(3600 * (1 + ratio**0.5 / 3 + ratio / 9) - 300)
    assert save_interval(300, 6 * HOUR) == pytest.approx(3402.8, abs=0.1)


@pytest.mark.parametrize("save", [20.0, 100.0])
def test_save_interval_longer_than_mtbf_is_mtbf(save: float) -> None:
    """Where saving takes longer than running, the mean time between failures is the interval."""
    assert save_interval(save, 10) == 10


@pytest.mark.parametrize(("save", "mtbf"), [(-1, 10), (1, 0), (float("nan"), 10)])
def test_save_interval_nonsense_refused(save: float, mtbf: float) -> None:
    """Negative, zero and NaN times are refused."""
    with pytest.raises(ValueError, match="failures come every"):
        save_interval(save, mtbf)


def overhead(interval: float, save: float, mtbf: float) -> float:
    """Daly's model of the wall time per second of work, with restarts for free (eq. 20 of the same paper)."""
    return mtbf / interval * math.expm1((interval + save) / mtbf)


@given(st.floats(0.1, 600), st.floats(HOUR, 1000 * HOUR), st.floats(1.1, 5))
def test_save_interval_is_near_optimal(save: float, mtbf: float, factor: float) -> None:
    """No other interval is better by more than a little."""
    best = overhead(save_interval(save, mtbf), save, mtbf)
    for other in (factor, 1 / factor):
        assert best <= overhead(save_interval(save, mtbf) * other, save, mtbf) * 1.0005


def test_mtbf_of_new_run_is_published_rate() -> None:
    """16,384 GPUs failed 419 times in 54 days: every 3.1 hours; eight GPUs then fail every 264 days."""
    assert mean_time_between_failures([], 16_384) == pytest.approx(54 * 24 / 419 * HOUR)
    assert mean_time_between_failures([], 8) == pytest.approx(264 * 24 * HOUR, rel=0.01)


def run(minutes: float, restarts: int) -> list[dict[str, Any]]:
    events = [at(0, "start"), at(0, "training", step=0)]
    for n in range(restarts):
        second = (n + 1) * minutes * 60 / (restarts + 1)
        events += [at(second, "failure", step=n), at(second, "restart", attempt=n + 1)]
        events += [at(second, "start", attempt=n + 1), at(second, "training", step=n)]
    return [*events, at(minutes * 60, "progress", step=99)]


def test_mtbf_learned_from_frequent_failures() -> None:
    """A run that fails every minute soon expects that."""
    assert mean_time_between_failures(run(10, 10), 2) == pytest.approx(7 * 60, rel=0.01)
    assert mean_time_between_failures(run(1500, 1500), 2) == pytest.approx(60, rel=0.05)


def test_mtbf_forgets_early_failure_with_time() -> None:
    """One failure at the beginning is forgotten with time."""
    early, late = (mean_time_between_failures(run(minutes, 1), 8) for minutes in (10, 60_000))
    assert early == pytest.approx(70 * 60, rel=0.01)
    assert late == pytest.approx(1001 * HOUR, rel=0.2)


def test_mtbf_without_failures_is_published_rate() -> None:
    """A run without failures is not expected to fail less than others."""
    assert mean_time_between_failures(run(60_000, 0), 8) == pytest.approx(mean_time_between_failures([], 8))


def test_mtbf_excludes_idle_time() -> None:
    """Idle time does not count as time without failures."""
    waiting = [*run(10, 2), at(600, "signal"), at(600 + 9000 * HOUR, "start"), at(600 + 9000 * HOUR, "end")]
    assert mean_time_between_failures(waiting, 8) == pytest.approx(mean_time_between_failures(run(10, 2), 8))


@pytest.mark.parametrize(
    ("kinds", "count"),
    [
        ("start training failure restart start training end", 1),
        ("start training failure remedy restart start training end", 0),
        ("start training signal start training end start training end", 0),
        ("start training checkpoint_begin start training end", 1),
        ("start start", 0),
        ("start training failure start training", 0),
        ("", 0),
    ],
)
def test_run_ends_that_count_as_failures(kinds: str, count: int) -> None:
    assert failures([{"kind": kind} for kind in kinds.split()]) == count
