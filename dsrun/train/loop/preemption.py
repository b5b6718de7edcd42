"""Stopping on request: the ranks' vote, the save before the exit, and the evaluation to make up for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback
from transformers.trainer_utils import IntervalStrategy

from dsrun.errors import DsrunError
from dsrun.train.base.rank_context import PreemptionHandler, RankContext

MEMORY = "dsrun"
"""The key of trainer_state.json's stateful_callbacks under which this stands; no callback has this name."""


class EvaluationLeftError(DsrunError):
    """The ranks left an evaluation, all at the same place, because one of them was asked to stop."""


@dataclass(eq=False)
class StopVote:
    """Whether any rank was asked to stop; all ranks vote, again and again.

    On a GPU the answer is that of the question before: reading the newest would wait for all work queued so far.
    """

    stopping: PreemptionHandler
    world_size: int
    device: torch.device
    _before: torch.Tensor | None = None

    def any_rank_requested(self) -> bool:
        if not self.stopping.is_on:
            return False
        votes = self._cast()
        known, self._before = (votes if self.device.type == "cpu" else self._before), votes
        return known is not None and bool(known)

    def newest(self) -> bool:
        """The newest answer, whatever it waits for."""
        return self.stopping.is_on and bool(self._cast())

    def _cast(self) -> torch.Tensor:
        votes = torch.tensor(int(self.stopping.is_requested), device=self.device)
        if self.world_size > 1:
            dist.all_reduce(votes)
        return votes


class PreemptionCallback(TrainerCallback):
    """Saves after the step in which the ranks learnt of the request, and ends training when that is done.
    `should_training_stop` is set after the save: the Trainer stores it in the checkpoint, and the resumed run would
    take itself for finished. An evaluation due at that step is left for the resumed run, which makes it before its
    first step."""

    def __init__(self, trainer: Any, stopping: PreemptionHandler) -> None:
        self.trainer = trainer
        self.stopping = stopping

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.stopping.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer.ranks_want_to_stop and state.global_step < state.max_steps:
            self.trainer.interrupted = True
            epochs = args.eval_strategy == IntervalStrategy.EPOCH and args.eval_delay <= state.epoch
            due = control.should_evaluate or (epochs and float(state.epoch).is_integer())
            remember_evaluation(state, due=due)
            # An evaluation may take longer than a scheduler waits between SIGTERM and SIGKILL (SLURM's KillWait: 30 s).
            control.should_save = True
            control.should_evaluate = False

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The stock loop ends an epoch that it left halfway like a whole one.
        if self.trainer.interrupted:
            control.should_evaluate = control.should_save = False

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Asked during the save: there is nothing to save after one more step that this checkpoint has not.
        # Where that failed there is: the next step saves.
        if not (self.trainer.interrupted or self.trainer.save_again) and state.global_step < state.max_steps:
            self.trainer.interrupted = self.trainer.any_rank_stops()
        if self.trainer.interrupted:
            control.should_training_stop = True


class PendingEvaluationCallback(TrainerCallback):
    """Makes the evaluation that an earlier attempt had no time for. The last callback to be added: all others are ready
    for an evaluation then."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.stateful_callbacks.get(MEMORY, {}).get("evaluation_due"):
            self.trainer.make_up_evaluation()
            remember_evaluation(state, due=False)


def remember_evaluation(state: Any, *, due: bool) -> None:
    """Have the next checkpoint record whether the evaluation after its step is still to be made."""
    state.stateful_callbacks[MEMORY] = {"evaluation_due": due}


class HeartbeatCallback(TrainerCallback):
    """The heartbeat of each step, with the `step_times` of the last ones (`dsrun.train.loop.step_times`)."""

    def __init__(self, context: RankContext, step_times: Callable[[], Mapping[str, float]] = dict) -> None:
        self.context = context
        self.step_times = step_times

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.context.progress.step = state.global_step
        self.context.heart.enter("training")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.context.progress.step = state.global_step
        self.context.heart.step(state.global_step, self.step_times())
