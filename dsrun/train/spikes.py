"""Losses far above the recent ones: told, not acted upon."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from transformers import TrainerCallback

from dsrun.train.console import number

REMEMBERED = 50
# Fewer losses do not show how much they scatter.
FEWEST = 12
LARGEST_SCORE = 8.0
# A loss that hardly scatters at all makes any change look large.
SMALLEST_JUMP = 1.2


def robust_z(value: float, others: Sequence[float]) -> float:
    """How many standard deviations `value` lies above the median of `others`, their scatter taken from the median
    absolute deviation, which outliers do not widen (Iglewicz and Hoaglin 1993; 0.6745 is its value for a normal
    distribution of deviation 1). Infinity where the others are all alike."""
    middle = statistics.median(others)
    deviation = statistics.median(abs(each - middle) for each in others)
    distance = value - middle
    if deviation == 0:
        return math.inf if distance > 0 else 0.0
    return 0.6745 * distance / deviation


class SpikeWatch(TrainerCallback):
    """Tells of logged losses that stand out. Rank 0 only."""

    def __init__(self, tell: Callable[[int, str], None]) -> None:
        self.tell = tell
        self._losses: deque[float] = deque(maxlen=REMEMBERED)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        loss = (logs or {}).get("loss")
        if loss is None or not math.isfinite(loss):
            return
        if len(self._losses) >= FEWEST:
            usual = statistics.median(self._losses)
            if loss > SMALLEST_JUMP * usual and robust_z(loss, self._losses) > LARGEST_SCORE:
                self.tell(state.global_step, f"the loss rose to {number(loss)}, from about {number(usual)}")
        self._losses.append(loss)
