"""Losses of pairs of answers, of which people preferred the first: those of TRL 1.16's DPOTrainer (dpo_trainer.py) that
need no other model, under its names and in its form where the papers leave one open."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn.functional import logsigmoid

DISCOPOP_TAU = 0.05
ALPHA = 0.5
"""Of the alpha divergence."""
# Where filler goes in an order of pairs: to the end.
_LAST = 1e30


class AnswerPairs(NamedTuple):
    """A micro batch, [pairs, 2] in fp32, chosen answers first: log probabilities in nats by the model and by the
    reference, what the divergence makes of their ratios, and the answers' tokens. `real` [pairs] is no filler."""

    now: torch.Tensor
    before: torch.Tensor
    scores: torch.Tensor
    tokens: torch.Tensor
    real: torch.Tensor

    @property
    def margin(self) -> torch.Tensor:
        """By how much more than the reference the model prefers the chosen answer."""
        return self.scores[:, 0] - self.scores[:, 1]

    @property
    def mean_margin(self) -> torch.Tensor:
        """The same of scores per token, as the authors of IPO measured it (says TRL)."""
        means = self.scores / self.tokens.clamp(min=1)
        return means[:, 0] - means[:, 1]

    def ordered(self, upper: torch.Tensor, lower: torch.Tensor) -> torch.Tensor:
        """Of each pair by how much its `upper` exceeds the `lower` of the same place in the micro batch's order."""
        values, order = upper.where(self.real, _LAST).sort()
        return (values - lower.where(self.real, _LAST).sort().values)[order.argsort()]


def _logistic(margin: torch.Tensor, swapped: float = 0.0) -> torch.Tensor:
    """-log σ, with a share of pairs taken to be labelled the wrong way round (conservative DPO, Mitchell 2023)."""
    return -(1 - swapped) * logsigmoid(margin) - swapped * logsigmoid(-margin)


def _exo(margin: torch.Tensor, swapped: float) -> torch.Tensor:
    """KL(σ(margin) ‖ 1 - swapped) (Ji et al. 2024, equation 16)."""
    right, wrong = logsigmoid(margin), logsigmoid(-margin)
    return right.exp() * (right - math.log1p(-swapped)) + wrong.exp() * (wrong - math.log(swapped))


def _discopop(margin: torch.Tensor) -> torch.Tensor:
    """Lu et al. 2024, equation 5."""
    share = torch.sigmoid(margin / DISCOPOP_TAU)
    return _logistic(margin) * (1 - share) + torch.exp(-margin) * share


LOSSES: dict[str, Callable[[AnswerPairs, torch.Tensor, float, float], torch.Tensor]] = {
    # Rafailov et al. 2023, equation 7; the same per token; Zhao et al. 2023 (SLiC).
    "sigmoid": lambda p, _, beta, swapped: _logistic(beta * p.margin, swapped),
    "sigmoid_norm": lambda p, _, beta, swapped: _logistic(beta * p.mean_margin, swapped),
    "hinge": lambda p, _, beta, __: torch.relu(1 - beta * p.margin),
    # Azar et al. 2023, equation 17.
    "ipo": lambda p, _, beta, __: (p.mean_margin - 1 / (2 * beta)) ** 2,
    "exo_pair": lambda p, _, beta, swapped: _exo(beta * p.margin, swapped),
    # Chen et al. 2024 (noise contrastive alignment).
    "nca_pair": lambda _, r, __, ___: _logistic(r[:, 0]) + (_logistic(-r[:, 0]) + _logistic(-r[:, 1])) / 2,
    # Chowdhury et al. 2024: unbiased where that share of the labels is wrong.
    "robust": lambda p, _, beta, swapped: (
        ((1 - swapped) * _logistic(beta * p.margin) - swapped * _logistic(-beta * p.margin)) / (1 - 2 * swapped)
    ),
    # Jung et al. 2024, without their running mean of rewards.
    "bco_pair": lambda _, r, __, ___: _logistic(r[:, 0]) + _logistic(-r[:, 1]),
    # Wu et al. 2024, equation 4.7, with probabilities of 1 and 0.
    "sppo_hard": lambda _, r, beta, __: ((r[:, 0] - 0.5) ** 2 + (r[:, 1] + 0.5) ** 2) / beta**2,
    # Melnyk et al. 2024: orders are compared, which a micro batch has of its own pairs.
    "aot": lambda p, _, beta, swapped: _logistic(
        beta * p.ordered(p.now[:, 0] - p.now[:, 1], p.before[:, 0] - p.before[:, 1]), swapped
    ),
    "aot_unpaired": lambda p, r, _, swapped: _logistic(p.ordered(r[:, 0], r[:, 1]), swapped),
    # D'Oosterlinck et al. 2024, equations 7 and 8.
    "apo_zero": lambda _, r, __, ___: torch.sigmoid(-r[:, 0]) + torch.sigmoid(r[:, 1]),
    "apo_down": lambda _, r, __, ___: torch.sigmoid(r[:, 0]) + torch.sigmoid(r[:, 1] - r[:, 0]),
    "discopop": lambda p, _, beta, __: _discopop(beta * p.margin),
    # Nothing but --sft-weight.
    "sft": lambda p, _, __, ___: 0 * p.margin,
}
"""The loss of each pair, from its rewards (β times the log ratios), β, and the share of swapped pairs."""

DIVERGENCES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "reverse_kl": lambda ratios: ratios,
    "forward_kl": lambda ratios: 1 - torch.exp(-ratios),
    "js_divergence": lambda ratios: math.log(2) + logsigmoid(ratios),
    # Bounded, so that no exponential overflows.
    "alpha_divergence": lambda ratios: (torch.exp(((ALPHA - 1) * ratios).clamp(max=80.0)) - 1) / (ALPHA - 1),
}
"""f'(u) of f-DPO (Wang et al. 2023), of log ratios log u, up to a constant."""
