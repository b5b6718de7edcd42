"""When two runs are the same but for rounding, which grows with each step."""

from __future__ import annotations

import math

import pytest

from dsrun.train.certify.look.losses import FP32, RunCurve, is_same

LOSSES, NORMS = (5.0, 4.9, 4.8, 4.7), (3.0, 2.9, 2.8, 2.7)


def curve(step=0, loss=0.0, norm=0.0):
    """With a relative error in one step."""
    losses, norms = ([*each] for each in (LOSSES, NORMS))
    losses[step] *= 1 + loss
    norms[step] *= 1 + norm
    return RunCurve(tuple(losses), tuple(norms))


@pytest.mark.parametrize(
    ("found", "same"),
    [
        (curve(), True),
        (curve(0, loss=1e-5), True),
        (curve(0, loss=1e-4), False),
        (curve(0, norm=1e-3), False),
        (curve(1, loss=1e-4), True),
        (curve(3, loss=1e-3, norm=1e-2), True),
        (curve(3, loss=1e-2), False),
        (curve(3, norm=1e-1), False),
        (curve(2, loss=math.nan), False),
        (RunCurve(LOSSES[:3], NORMS[:3]), False),
        (RunCurve((), ()), False),
    ],
)
def test_rounding_is_told_from_faults(found, same):
    assert is_same(found, RunCurve(LOSSES, NORMS), FP32) is same
