"""Loss spikes: reported when they exceed the usual scatter, and only then."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace

import pytest

from dsrun.train.loop.recording import LossSpikeDetector, robust_z


def told(losses):
    found = []
    watch = LossSpikeDetector(lambda step, words: found.append((step, words)))
    for step, loss in enumerate(losses, start=1):
        watch.on_log(None, SimpleNamespace(global_step=step), None, logs={"loss": loss})
    return found


def test_robust_z_of_normal_distribution():
    rng = random.Random(0)
    sample = [rng.gauss(5.0, 2.0) for _ in range(20_000)]
    assert robust_z(5.0 + 3 * 2.0, sample) == pytest.approx(3.0, rel=0.05)


def test_robust_z_of_several_outliers():
    """Outliers do not hide each other."""
    assert robust_z(100.0, [1.0, 1.1, 0.9, 1.0, 1.2, 0.8, 100.0, 100.0]) > 100


def test_loss_spike_reported_with_step_and_usual_loss():
    rng = random.Random(1)
    losses = [3.0 + rng.gauss(0, 0.05) for _ in range(40)]
    losses[30] = 9.0
    ((step, words),) = told(losses)
    assert step == 31
    assert words.startswith("the loss rose to 9, from about 3")


@pytest.mark.parametrize(
    "losses",
    [
        [10.0 * 0.97**step for step in range(80)],
        [3.0] * 40 + [3.1],
        [3.0, 9.0, 3.0, 3.0],
        [2.0 + 0.5 * math.sin(step) for step in range(80)],
        [5.0] * 20 + [math.nan, math.inf] + [5.0] * 20,
    ],
    ids=["falling", "hardly scattering", "too few", "scattering", "not finite"],
)
def test_usual_loss_is_no_spike(losses):
    assert told(losses) == []
