"""Figures that must go on over a resume as if nothing had been: losses not logged yet, and the tokens read."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState


class LossState(TrainerCallback, ExportableState):
    """Keeps in the checkpoint what the Trainer's log lines are made of.

    The stock loop begins a new sum of losses at a resume, so the first line after it would be the mean of other steps
    than that of a run that was never interrupted.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._noted: dict[str, Any] = {}

    def note(self) -> None:
        """Called on all ranks before a checkpoint is written."""
        trainer = self.trainer
        total = trainer._tr_loss.detach().clone()
        totals = [torch.empty_like(total) for _ in range(trainer.split.world_size)]
        if trainer.split.world_size > 1:
            dist.all_gather(totals, total)
        else:
            totals = [total]
        self._noted = {
            # float32 values are floats of Python exactly.
            "losses": [float(each) for each in totals],
            "logged": trainer._globalstep_last_logged,
            "tokens": trainer.tokens_seen,
        }

    def state(self) -> dict[str, Any]:
        """What the checkpoint holds."""
        return {"args": {}, "attributes": {"noted": self._noted}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        stored = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        noted = stored["attributes"]["noted"]
        if not noted:
            return
        trainer, losses = self.trainer, noted["losses"]
        # Every rank's sum is its share times the number of ranks; of another number only their mean can be kept.
        same = len(losses) == trainer.split.world_size
        mine = losses[trainer.split.rank] if same else sum(losses) / len(losses)
        trainer._tr_loss.fill_(mine)
        trainer._globalstep_last_logged = noted["logged"]
        trainer.count_tokens(noted["tokens"])
