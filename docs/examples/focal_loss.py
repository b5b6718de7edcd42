"""A loss and a metric of your own: focal loss (Lin et al. 2017), and how many answers end with the right word.

dsrun train --model demo-t5 --plugin focal_loss:FocalLoss --metric-for-best-model last_word --early-stopping 3
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from dsrun.plugin import Example, Plugin


class FocalLoss(Plugin):
    """Tokens that the model is already sure of count less."""

    api_version = 1
    metric_names = ("last_word",)
    gamma = 2.0

    def loss(self, model: Any, inputs: dict[str, torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
        logits = model(**inputs)["logits"].flatten(0, 1).float()
        # 0 for positions that are not learned, so that they add nothing to the sum.
        entropy = F.cross_entropy(logits, targets.flatten(), ignore_index=-100, reduction="none")
        return ((1 - torch.exp(-entropy)) ** self.gamma * entropy).sum()

    def metrics(self, examples: Sequence[Example]) -> dict[str, float]:
        right = sum(each.prediction.split()[-1:] == each.reference.split()[-1:] for each in examples)
        return {"last_word": 100 * right / len(examples)}
