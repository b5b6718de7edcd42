"""What is told around training steps, evaluations and saves: signs of life, events, and the figures of others."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from dsrun.train.lifecycle.rank_context import RankContext
from dsrun.train.loop.nan import NanGuard
from dsrun.train.records import RunRecords, step_of

PROGRESS_SECONDS = 60.0


class HeartbeatCallback(TrainerCallback):
    """A sign of life at every optimizer step, and how many steps are done."""

    def __init__(self, life: RankContext) -> None:
        self.life = life

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.life.progress.step = state.global_step
        self.life.heart.enter("training")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.life.progress.step = state.global_step
        self.life.heart.step(state.global_step)


class EventCallback(TrainerCallback):
    """The events of training that are no save. Rank 0 only."""

    def __init__(self, records: RunRecords, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.records = records
        self.clock = clock
        self._told = clock()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.records.training(state.global_step)
        self._told = self.clock()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # How far a run was that was killed without a word.
        if self.clock() - self._told >= PROGRESS_SECONDS:
            self._told = self.clock()
            self.records.event("progress", step=state.global_step)

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, float], **kwargs: Any
    ) -> None:
        self.records.evaluated(state.global_step, metrics)


class SaveTimer:
    """What goes with a save, on all ranks: no NaN is saved, the heart says so, the ledger has it.

    `saved` (step, seconds) is told how long training waited.
    """

    def __init__(
        self,
        life: RankContext,
        records: RunRecords,
        guard: NanGuard,
        model: Any,
        saved: Callable[[int, float], None] = lambda _step, _seconds: None,
    ) -> None:
        self.life = life
        self.records = records
        self.guard = guard
        self.model = model
        self.saved = saved

    def __call__(self, phase: str, folder: Path, seconds: float, **details: Any) -> None:
        """`begin` before anything is written, `visible` when the checkpoint is complete, `end` when training goes
        on."""
        step = step_of(folder)
        if phase == "begin":
            self.life.heart.enter("saving")
            self.guard.check_weights(self.model, step)
        self.records.checkpoint(phase, folder, seconds, details)
        if phase == "end":
            self.life.progress.saved = step
            self.life.heart.enter("training")
            self.saved(step, seconds)
