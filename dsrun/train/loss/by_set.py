"""The training loss of each set of a mixture, from the logits that a micro batch has made anyway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dsrun.train.loop.batches import IGNORED
from dsrun.train.loss.model_loss import ModelLoss

# Logits turned into fp32 at a time: 64 MiB.
_CHUNK = 1 << 24


class LossBySet:
    """A model's loss, and for the log line its cross entropy over the samples of each set, without label smoothing and
    router losses. `names` are the sets, whose samples end before sample ends[i]. `ids` are to be set to the samples of
    each micro batch before it is computed; without them nothing is counted."""

    def __init__(self, loss: ModelLoss, names: Sequence[str], ends: Sequence[int]) -> None:
        self.loss = loss
        self.names = tuple(names)
        self.ends = np.asarray(ends)
        self.ids: Sequence[int] = ()
        self.kind, self.shifted, self.rows = loss.kind, loss.shifted, loss.rows
        self.items, self.sums, self.metrics = loss.items, loss.sums, loss.metrics
        # For each set the summed cross entropy in nats, and the target tokens.
        self.window = torch.zeros(len(self.names), 2, dtype=torch.float64)

    def __call__(self, model: Any, inputs: dict[str, Any], items: torch.Tensor) -> tuple[torch.Tensor, Any]:
        loss, outputs = self.loss(model, inputs, items)
        if len(self.ids):
            self._count(outputs["logits"].detach(), inputs["labels"])
        return loss, outputs

    def logged(self, window: torch.Tensor) -> dict[str, float]:
        """The mean loss of each set that the steps since the last line had samples of."""
        entropy, tokens = window.unbind(1)
        means = (entropy / tokens.clamp(min=1)).tolist()
        return {
            f"loss/{name}": mean for name, mean, some in zip(self.names, means, tokens.tolist(), strict=True) if some
        }

    @torch.no_grad()
    def _count(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Add a micro batch, whose first rows are the samples `ids`; what follows is filler."""
        rows = len(self.ids)
        logits, labels = logits[:rows], labels[:rows].to(logits.device)
        if self.shifted:
            logits, labels = logits[:, :-1], labels[:, 1:]
        entropy = row_entropies(logits, labels)
        tokens = labels.ne(IGNORED).sum(1)
        # A step with such a loss is left out, or ends the run.
        counts = entropy.isfinite()
        found = torch.stack([entropy, tokens.double()], 1).where(counts[:, None], 0.0)
        sets = torch.as_tensor(np.searchsorted(self.ends, self.ids, side="right"), device=logits.device)
        self.window = self.window.to(logits.device).index_add(0, sets, found)


def row_entropies(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The summed cross entropy of each row in nats, fp64 [rows]; `logits` [rows, length, vocabulary] are those of the
    `labels` [rows, length]. A few positions at a time, as all logits in fp32 would be a second copy of them."""
    rows, length, vocabulary = logits.shape
    sums = torch.zeros(rows, dtype=torch.float64, device=logits.device)
    step = max(1, _CHUNK // vocabulary)
    for row in range(rows):
        for start in range(0, length, step):
            part, targets = logits[row, start : start + step].float(), labels[row, start : start + step]
            sums[row] += torch.nn.functional.cross_entropy(part, targets, ignore_index=IGNORED, reduction="sum")
    return sums
