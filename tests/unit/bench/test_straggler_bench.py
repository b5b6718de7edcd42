"""What counts as a hit of bench/straggler.py, and what as a false alarm."""

from __future__ import annotations

import pytest

from bench.straggler import StragglerRun


@pytest.mark.parametrize(
    ("percent", "found", "hit", "false"),
    [
        (20, (), None, 0),
        (20, ((1, 38, 1.2),), 38, 0),
        (20, ((0, 33, 1.2), (1, 38, 1.2), (1, 47, 1.2)), 38, 1),
        (0, ((1, 38, 1.2),), None, 1),
    ],
)
def test_hits_and_false_alarms_of_a_run(percent, found, hit, false):
    run = StragglerRun(number=0, percent=percent, rank=1, noise=0.0, found=found)
    assert (run.hit, run.false) == (hit, false)
