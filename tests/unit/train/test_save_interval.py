"""--save-every auto: the first save comes early, then the interval that follows from how long it took."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

from dsrun.train.loop.preemption import FIRST_SAVE_SECONDS, AdaptiveSaveInterval


class Run:
    """A trainer of one rank whose steps take `step_s` and whose saves take `save_s` of a clock that only it moves."""

    def __init__(self, *, step_s, save_s, interval_s):
        self.now = 0.0
        self.wants_to_save = self.ranks_want_to_save = False
        self.step_s, self.save_s = step_s, save_s
        self.told = []
        self.often = AdaptiveSaveInterval(
            self, lambda _seconds: interval_s, lambda *told: self.told.append(told), clock=lambda: self.now
        )

    def train(self, steps):
        """The moments of the saves, and the steps after which they were made."""
        saves = []
        self.often.on_train_begin(None, None, None)
        for step in range(1, steps + 1):
            self.ranks_want_to_save = self.wants_to_save  # the sum before the step
            self.now += self.step_s
            control = SimpleNamespace(should_save=False)
            self.often.on_step_end(None, SimpleNamespace(global_step=step, max_steps=steps), control)
            if control.should_save:
                saves.append((step, self.now))
                self.now += self.save_s
                self.often.saved(step, self.save_s)
        return saves


def test_adaptive_save_interval():
    """Saves come after the interval, and not before the step that ends it."""
    run = Run(step_s=2.0, save_s=5.0, interval_s=100.0)
    saves = run.train(300)
    moments = [moment for _, moment in saves]
    assert FIRST_SAVE_SECONDS <= moments[0] <= FIRST_SAVE_SECONDS + 2 * run.step_s
    gaps = [later - earlier - run.save_s for earlier, later in itertools.pairwise(moments)]
    assert gaps
    assert all(100.0 <= gap <= 100.0 + 2 * run.step_s for gap in gaps)


def test_adaptive_save_interval_reported_once():
    run = Run(step_s=2.0, save_s=5.0, interval_s=100.0)
    run.train(300)
    ((step, seconds, steps, words),) = run.told
    assert (seconds, steps) == (100.0, 50)
    assert step > 0
    assert "every 100 s" in words


def test_adaptive_save_leaves_last_step_to_trainer():
    run = Run(step_s=100.0, save_s=1.0, interval_s=10.0)
    assert [step for step, _ in run.train(5)] == [2, 4]
