"""Where the run is in its data, and which samples each step took."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch.distributed as dist
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from dsrun.runs.records import Appender
from dsrun.runs.samples import append_start, append_step, ledger_of, next_attempt
from dsrun.train.batching.batches import Split, StreamOfBatches
from dsrun.train.batching.loaders import MicroBatch


class TakesBatches(Protocol):
    """The part of the trainer that is needed here: `taken` are the micro batches of the present optimizer step."""

    taken: list[MicroBatch]
    split: Split


class DataPlace(TrainerCallback, ExportableState):
    """Keeps a stream's place after the last step in the checkpoint (trainer_state.json), and begins there again.

    The place comes with the batches that were trained on, so what loader processes have read ahead does not count. It
    is the same on all ranks, and any number of ranks goes on from it. A table needs none: its place follows from the
    step and the seed.
    """

    def __init__(self, trainer: TakesBatches) -> None:
        self.trainer = trainer
        self._place: dict[str, Any] | None = None

    def state(self) -> dict[str, Any]:
        """What the checkpoint holds."""
        return {"args": {}, "attributes": {"place": self._place}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # A checkpoint that knew nothing of places would make the Trainer fail at the next save.
        stored = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        self._place = stored["attributes"]["place"]
        rows = kwargs["train_dataloader"].dataset
        if isinstance(rows, StreamOfBatches):
            rows.place = self._place

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._place = self.trainer.taken[-1].after


class SampleLedger(TrainerCallback):
    """Writes the ids of the samples that each finished step took to samples-rank-R.jsonl; see `dsrun.runs.samples`."""

    def __init__(self, trainer: TakesBatches, folder: Path) -> None:
        self.trainer = trainer
        self.folder = folder
        self.attempt = 0
        self._ledger: Appender | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        split = self.trainer.split
        attempt = [next_attempt(self.folder)]
        if split.world_size > 1:
            # A rank that did not always take part has an incomplete ledger; rank 0's knows.
            dist.broadcast_object_list(attempt, src=0)
        (self.attempt,) = attempt
        self._ledger = Appender(ledger_of(self.folder, split.rank))
        append_start(self._ledger, self.attempt, step=state.global_step, ranks=split.world_size)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._ledger is None:
            return
        taken = self.trainer.taken
        ids = [each for batch in taken for each in batch.ids]
        append_step(self._ledger, self.attempt, step=state.global_step, epoch=taken[0].epoch, ids=ids)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None
