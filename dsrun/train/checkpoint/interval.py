"""`--save-every auto`: how often to save follows from how long a save takes and how often something fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

# The first save comes early, as nothing is known before it.
FIRST_SAVE_SECONDS = 60.0
# How much the interval must change before the user hears of it again.
WORTH_A_WORD = 2.0


class AdaptiveSaveInterval(TrainerCallback):
    """Saves when the interval is over.

    The clock of the one that `leads`, rank 0, decides: its wish travels in the sum that all ranks form before the next
    step, so that all of them save after the same one. `interval` gives the seconds between saves from the seconds that
    a save takes; `tell` (step, seconds, steps, words) hears of each interval that is chosen.
    """

    def __init__(
        self,
        trainer: Any,
        interval: Callable[[float], float],
        tell: Callable[[int, float, int, str], None],
        *,
        leads: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.trainer = trainer
        self.interval = interval
        self.tell = tell
        self.leads = leads
        self.clock = clock
        self.seconds = FIRST_SAVE_SECONDS
        self._told = 0.0
        self._last_save = self._last_step = 0.0
        self._step_seconds = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._last_save = self._last_step = self.clock()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        now = self.clock()
        self._step_seconds, self._last_step = now - self._last_step, now
        if self.trainer.ranks_want_to_save and state.global_step < state.max_steps:
            control.should_save = True
        # One step ahead, as the others hear of it with the next step.
        if self.leads:
            self.trainer.wants_to_save = now + self._step_seconds - self._last_save >= self.seconds

    def saved(self, step: int, seconds: float) -> None:
        """A save after `step` took `seconds`."""
        self._last_save = self._last_step = self.clock()
        self.trainer.wants_to_save = False
        self.seconds = self.interval(seconds)
        steps = max(1, round(self.seconds / self._step_seconds)) if self._step_seconds else 0
        if not self._told or not 1 / WORTH_A_WORD <= self.seconds / self._told <= WORTH_A_WORD:
            self._told = self.seconds
            words = f"a save takes {seconds:.1f} s, so one is made every {self.seconds:.0f} s"
            self.tell(step, self.seconds, steps, words + (f" (about {steps:,} steps)" if steps else ""))
