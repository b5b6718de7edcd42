"""The training loss of each set of a mixture, from the logits that a micro batch has made anyway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dsrun.train.loop.batches import IGNORED
from dsrun.train.loss.cross_entropy import token_cross_entropy
from dsrun.train.loss.model_loss import ModelLoss


class LossBySet:
    """A model's loss, and for the log line its cross entropy over the samples of each set, without label smoothing and
    router losses. `names` are the sets, whose samples end before sample ends[i]. `ids` are to be set to the samples of
    each micro batch before it is computed, and `spans` to where their labels are: row, first position, and the one
    behind the last; without them nothing is counted."""

    def __init__(self, loss: ModelLoss, names: Sequence[str], ends: Sequence[int]) -> None:
        self.loss = loss
        self.names = tuple(names)
        self.ends = np.asarray(ends)
        self.ids: Sequence[int] = ()
        self.spans: Sequence[tuple[int, int, int]] = ()
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
        """Add a micro batch."""
        labels = labels.to(logits.device)
        shift = int(self.shifted)
        targets = [labels[row, start + shift : stop] for row, start, stop in self.spans]
        entropy = torch.stack(
            [
                token_cross_entropy(logits[row, start : stop - shift], each).double().sum()
                for (row, start, stop), each in zip(self.spans, targets, strict=True)
            ]
        )
        tokens = torch.stack([each.ne(IGNORED).sum() for each in targets])
        # A step with such a loss is left out, or ends the run.
        counts = entropy.isfinite()
        found = torch.stack([entropy, tokens.double()], 1).where(counts[:, None], 0.0)
        sets = torch.as_tensor(np.searchsorted(self.ends, self.ids, side="right"), device=logits.device)
        self.window = self.window.to(logits.device).index_add(0, sets, found)
