"""Direct preference optimization (Rafailov et al. 2023): the model comes to prefer the chosen answers by more than the
reference does, the model as it was."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import logsigmoid

from dsrun.datafiles import SubjectNames, evaluate, toml_beside
from dsrun.recipe.recipe_spec import TrainSpec
from dsrun.train.base.labels import IGNORED, shifted_targets
from dsrun.train.loss.cross_entropy import token_cross_entropy
from dsrun.train.loss.protocol import AdaptersOff, FrozenModel, Loss, PreferenceInputs

# Sums over pairs, in this order.
_OF_PAIRS = ("loss", "rewards/chosen", "rewards/rejected", "rewards/accuracies", "logps/chosen", "logps/rejected")
# Behind them: the number of pairs, the summed cross entropy in nats of chosen answers, and their target tokens.
_SUMS = len(_OF_PAIRS) + 3
METRICS = (*_OF_PAIRS[1:], "rewards/margins")
"""What is logged beside the loss; the names are those of TRL."""

# As in TRL's dpo_trainer.py.
_FORMULAS: dict[str, dict[str, str]] = toml_beside(__file__)
LOSSES, DIVERGENCES = _FORMULAS["losses"], _FORMULAS["divergences"]
# Where filler goes in an order of pairs: to the end.
_LAST = 1e30


def logistic(margin: torch.Tensor, swapped: float = 0.0) -> torch.Tensor:
    """-log σ, with a share of pairs taken to be labelled the wrong way round (conservative DPO, Mitchell 2023)."""
    return -(1 - swapped) * logsigmoid(margin) - swapped * logsigmoid(-margin)


def ordered(upper: torch.Tensor, lower: torch.Tensor, *, real: torch.Tensor) -> torch.Tensor:
    """Of each pair by how much its `upper` exceeds the `lower` of the same place in the micro batch's order; those that
    are not `real` are filler."""
    values, order = upper.where(real, _LAST).sort()
    return (values - lower.where(real, _LAST).sort().values)[order.argsort()]


_FUNCTIONS: dict[str, Any] = {
    "logistic": logistic, "logsigmoid": logsigmoid, "sigmoid": torch.sigmoid, "relu": torch.relu, "exp": torch.exp,
    "log": math.log, "log1p": math.log1p,
}  # fmt: skip


def pair_losses(spec: TrainSpec, *, real: torch.Tensor, **values: torch.Tensor) -> torch.Tensor:
    """The loss of each pair [pairs], from the `values` that dpo.toml names; `real` [pairs] is no filler."""
    terms = {**_FORMULAS["terms"], "scores": DIVERGENCES[spec.dpo_divergence]}
    settings = {"beta": spec.dpo_beta, "swapped": spec.dpo_label_smoothing, "ordered": partial(ordered, real=real)}
    names = SubjectNames(None, terms, **_FUNCTIONS, **settings, **values)
    losses: torch.Tensor = evaluate(LOSSES[spec.dpo_loss], names)
    return losses


def without_dropout(model: nn.Module) -> None:
    """Switch dropout off for good, as TRL does: its noise would drown the small differences between the answers."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        # Attention has its probability as a number of its own.
        for name, value in vars(module).items():
            if name.endswith("dropout") and isinstance(value, float):
                setattr(module, name, 0.0)


def log_probabilities(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The log probability in nats of the labels, [rows, length], of each row: [rows], in fp32. Label i is the target of
    position i - 1; IGNORED ones do not count. The backward pass overwrites the logits."""
    return -token_cross_entropy(logits, shifted_targets(labels), overwrite=True).sum(1)


class DpoLoss(Loss):
    """Of pairs, one of the LOSSES of their rewards β log (model / reference), plus `sft_weight` times the mean cross
    entropy of the chosen answers' tokens (RPO, Pang et al. 2024)."""

    kind = "logits"
    shifted = True
    rows = 2
    no_logits = "dpo's loss is one of pairs"
    window: torch.Tensor

    def __init__(self, reference: AdaptersOff | FrozenModel, spec: TrainSpec) -> None:
        self.reference = reference
        self.spec = spec
        self.sft_weight = 1.0 if spec.dpo_loss == "sft" else spec.sft_weight
        self.window = torch.zeros(_SUMS, dtype=torch.float64)

    def items(self, labels: torch.Tensor) -> torch.Tensor:
        """The pairs that are not filler, and the target tokens of their chosen answers. `labels`: [2 x pairs,
        length]."""
        is_pair = self._is_pair(labels)
        return torch.stack([is_pair.sum(), self._chosen_tokens(labels).where(is_pair, 0).sum()])

    def __call__(self, model: Any, inputs: PreferenceInputs, items: torch.Tensor) -> tuple[torch.Tensor, Any]:
        terms, sums, outputs = self._pairs(model, inputs)
        self.window = self.window.to(sums.device) + sums
        return (terms / items).sum(), outputs

    @torch.no_grad()
    def sums(self, model: Any, inputs: PreferenceInputs) -> torch.Tensor:
        return self._pairs(model, inputs)[1]

    def metrics(self, sums: torch.Tensor) -> dict[str, float]:
        """Means over pairs; the loss also over tokens."""
        *of_pairs, pairs, entropy, tokens = sums.tolist()
        means = {name: each / max(pairs, 1) for name, each in zip(_OF_PAIRS, of_pairs, strict=True)}
        means["loss"] += self.sft_weight * entropy / max(tokens, 1)
        return {**means, "rewards/margins": means["rewards/chosen"] - means["rewards/rejected"]}

    def logged(self, window: torch.Tensor) -> dict[str, float]:
        return {name: value for name, value in self.metrics(window).items() if name in METRICS}

    def tensors(self) -> dict[str, torch.Tensor]:
        return self.reference.tensors() if isinstance(self.reference, FrozenModel) else {}

    def restore(self, checkpoint: Path) -> None:
        if isinstance(self.reference, FrozenModel):
            self.reference.restore(checkpoint)

    def _is_pair(self, labels: torch.Tensor) -> torch.Tensor:
        return labels.ne(IGNORED).any(1).view(-1, self.rows).all(1)

    def _chosen_tokens(self, labels: torch.Tensor) -> torch.Tensor:
        return labels[:: self.rows, 1:].ne(IGNORED).sum(1)

    def _pairs(self, model: Any, inputs: PreferenceInputs) -> tuple[torch.Tensor, torch.Tensor, Any]:
        """The summed loss of the pairs without filler and the weighted cross entropy [2], the _SUMS, and the model's
        outputs."""
        labels = inputs["labels"]
        read = {name: value for name, value in inputs.items() if name != "labels"}
        # First, so that ZeRO-3 has the trained model's parameters at hand for the backward pass.
        before = log_probabilities(self.reference.logits(model, read), labels).view(-1, self.rows)
        outputs = model(**read)
        now = log_probabilities(outputs["logits"], labels).view(-1, self.rows)
        is_pair = self._is_pair(labels)
        tokens = labels.ne(IGNORED).sum(1).view(-1, self.rows)
        values = {"now": now, "before": before, "tokens": tokens, "ratios": now - before}
        values["rewards"] = rewards = self.spec.dpo_beta * values["ratios"]
        losses = pair_losses(self.spec, real=is_pair, **values).where(is_pair, 0.0)
        entropy = -now[:, 0].where(is_pair, 0.0)
        shown = [losses, *rewards.unbind(1), (rewards[:, 0] > rewards[:, 1]).float(), *now.unbind(1), is_pair.float()]
        shown = torch.stack([*shown, entropy, self._chosen_tokens(labels).float()])
        terms = torch.stack([losses.sum(), self.sft_weight * entropy.sum()])
        return terms, (shown.detach().double() * is_pair).sum(1), outputs
