"""Direct preference optimization (Rafailov et al. 2023): the model comes to prefer the chosen answers by more than the
reference does, the model as it was."""

from copy import deepcopy
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional as F

from dsrun.train.base.labels import IGNORED, shifted_targets
from dsrun.train.loss.cross_entropy import token_cross_entropy
from dsrun.train.loss.protocol import Loss, PreferenceInputs
from dsrun.train.model.load import evaluating

# Sums over pairs, in this order; the last one is the number of pairs.
_SUMS = ("loss", "rewards/chosen", "rewards/rejected", "rewards/accuracies", "logps/chosen", "logps/rejected", "pairs")
METRICS = (*_SUMS[1:-1], "rewards/margins")
"""What is logged beside the loss; the names are those of TRL."""


class ReferenceModel(Protocol):
    """The model as it was before DPO."""

    def logits(self, trained: Any, inputs: PreferenceInputs) -> torch.Tensor:
        """Its logits, [rows, length, vocabulary]; `trained` is the model that is trained, as the Trainer wraps it."""
        ...


class AdaptersOff:
    """The reference of a LoRA run: the model without its adapters."""

    def __init__(self, adapted: Any) -> None:
        self.adapted = adapted

    @torch.no_grad()
    def logits(self, trained: Any, inputs: PreferenceInputs) -> torch.Tensor:
        # Not by way of `trained`: the hooks of ZeRO-3 are on the modules, and DDP has nothing to do without gradients.
        with evaluating(self.adapted), self.adapted.disable_adapter():
            logits: torch.Tensor = self.adapted(**inputs)["logits"]
        return logits


class FrozenCopy:
    """The reference of a run that trains all weights: a second model, sharded like the first under ZeRO-3."""

    def __init__(self, copy: Any, *, sharded: bool) -> None:
        self.copy = copy.eval().requires_grad_(False)
        self.sharded = sharded
        self._is_ready = False

    @torch.no_grad()
    def logits(self, trained: Any, inputs: PreferenceInputs) -> torch.Tensor:
        if not self._is_ready:
            self._prepare(trained)
        logits: torch.Tensor = self.copy(**inputs)["logits"]
        return logits

    def _prepare(self, trained: Any) -> None:
        """Bring the copy to where the trained model is by now, and into its dtype: until the first step both then
        compute the same. A collective under ZeRO-3."""
        self._is_ready = True
        if self.sharded:
            import deepspeed
            from transformers.integrations.deepspeed import deepspeed_config

            self.copy, *_ = deepspeed.initialize(model=self.copy, config=inference_config(deepspeed_config()))
            self.copy.eval()
            return
        like = next(trained.parameters())
        self.copy.to(device=like.device, dtype=like.dtype)


def inference_config(config: dict[str, Any]) -> dict[str, Any]:
    """DeepSpeed's configuration of a model that is only read, from that of the one that is trained."""
    kept = {name: deepcopy(value) for name, value in config.items() if name not in ("optimizer", "scheduler")}
    kept["zero_optimization"].pop("offload_optimizer", None)
    return kept


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
    """Of pairs: -log σ(β margin), the margin
    being by how much more than the reference the model prefers the chosen answer (Rafailov et al. 2023, equation 7).
    `smoothing` is the share of pairs that are taken to be labelled the wrong way round (conservative DPO, Mitchell
    2023).
    """

    kind = "logits"
    shifted = True
    rows = 2
    no_logits = "dpo's loss is one of pairs"
    window: torch.Tensor

    def __init__(self, reference: ReferenceModel, *, beta: float, smoothing: float = 0.0) -> None:
        self.reference = reference
        self.beta = beta
        self.smoothing = smoothing
        self.window = torch.zeros(len(_SUMS), dtype=torch.float64)

    def items(self, labels: torch.Tensor) -> torch.Tensor:
        """The number of pairs that are not filler. `labels`: [2 x pairs, length]."""
        return self._is_pair(labels).sum()

    def __call__(self, model: Any, inputs: PreferenceInputs, items: torch.Tensor) -> tuple[torch.Tensor, Any]:
        losses, sums, outputs = self._pairs(model, inputs)
        self.window = self.window.to(sums.device) + sums
        return losses.sum() / items, outputs

    @torch.no_grad()
    def sums(self, model: Any, inputs: PreferenceInputs) -> torch.Tensor:
        return self._pairs(model, inputs)[1]

    def metrics(self, sums: torch.Tensor) -> dict[str, float]:
        """Means over pairs."""
        means = dict(zip(_SUMS[:-1], (sums[:-1] / sums[-1].clamp(min=1)).tolist(), strict=True))
        return {**means, "rewards/margins": means["rewards/chosen"] - means["rewards/rejected"]}

    def logged(self, window: torch.Tensor) -> dict[str, float]:
        return {name: value for name, value in self.metrics(window).items() if name in METRICS}

    def _is_pair(self, labels: torch.Tensor) -> torch.Tensor:
        return labels.ne(IGNORED).any(1).view(-1, self.rows).all(1)

    def _pairs(self, model: Any, inputs: PreferenceInputs) -> tuple[torch.Tensor, torch.Tensor, Any]:
        """The loss of each pair, 0 for filler, the sums over the pairs, and the model's outputs."""
        labels = inputs["labels"]
        read = {name: value for name, value in inputs.items() if name != "labels"}
        # First, so that ZeRO-3 has the trained model's parameters at hand for the backward pass.
        before = log_probabilities(self.reference.logits(model, read), labels).view(-1, self.rows)
        outputs = model(**read)
        now = log_probabilities(outputs["logits"], labels).view(-1, self.rows)
        is_pair = self._is_pair(labels)
        rewards = self.beta * (now - before)
        margins = rewards[:, 0] - rewards[:, 1]
        right, wrong = -F.logsigmoid(margins), -F.logsigmoid(-margins)
        losses = torch.where(is_pair, (1 - self.smoothing) * right + self.smoothing * wrong, 0.0)
        shown = torch.stack([losses, *rewards.unbind(1), (margins > 0).float(), *now.unbind(1), is_pair.float()])
        return losses, (shown.detach().double() * is_pair).sum(1), outputs
