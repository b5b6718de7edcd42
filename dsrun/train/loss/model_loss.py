"""The loss of a micro batch: its share of the global batch's mean over target tokens."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from transformers.loss.loss_utils import ForCausalLMLoss

from dsrun.train.loop.batches import IGNORED
from dsrun.train.loss.cross_entropy import causal_lm_loss, shifted_targets, token_cross_entropy

Kind = Literal["shared", "routed", "own", "logits"]
"""Where a model's loss comes from: `shared`, the loss function that transformers' models share; `routed`, the same with
the router losses of a mixture of experts added; `own`, code of the model that makes something else of it; `logits`,
cross entropy of the logits, which is also what the other models of transformers compute."""

# What models add to the cross entropy: load balancing and z-losses (Fedus et al. 2021; Zoph et al. 2022).
_ADDED = re.compile(r"loss *\+= .*loss|loss = .*loss \+ .*loss|loss = .*\+ .*_loss\b")


def kind_of_loss(model: Any) -> Kind:
    """Where the loss of `model` comes from, told by the source of its forward."""
    if is_liger(model):
        return "shared"
    source = inspect.getsource(type(model).forward)
    adds = bool(_ADDED.search(source))
    if not model.config.is_encoder_decoder and "self.loss_function(" in source and "**kwargs" in source:
        if not adds:
            return "shared"
        return "routed" if calls_causal_lm_loss(model) else "own"
    if not is_stock(model) or adds or "self._compute_loss(" in source:
        return "own"
    return "logits"


def is_liger(model: Any) -> bool:
    """Whether Liger has replaced the forward of `model`, which then makes no logits where it is given labels."""
    return "liger_kernel" in (getattr(model.forward, "__module__", None) or "")


def calls_causal_lm_loss(model: Any) -> bool:
    """Whether the `loss_function` of `model` is the one of transformers for causal LMs, or dsrun's in its place."""
    found = model.loss_function
    return found is ForCausalLMLoss or getattr(found, "func", None) is causal_lm_loss


def is_stock(model: Any) -> bool:
    """Whether the class of `model` is one of transformers'."""
    return type(model).__module__.startswith("transformers.")


def own_loss_notice(model: Any, smoothing: float) -> str | None:
    """What does not hold with the loss of code that came with a model, or with that of a few models of transformers."""
    if kind_of_loss(model) != "own" or (is_stock(model) and not smoothing):
        return None
    name = type(model).__name__
    idle = "--label-smoothing-factor has no effect on it" if smoothing else ""
    if is_stock(model):
        return f"{name} computes a loss of its own: {idle}"
    return (
        f"{name} computes a loss of its own, which is used, also in evaluation: micro batches count by their target "
        "tokens, so their size and the number of GPUs matter unless it is a mean over these" + (idle and f"; {idle}")
    )


def shifts_labels(model: Any) -> bool:
    """Whether label i is the target of position i - 1 (causal LM) and not of position i (encoder-decoder)."""
    return not model.config.is_encoder_decoder


def target_tokens(labels: torch.Tensor, *, shifted: bool) -> torch.Tensor:
    """The number of labels, [batch, length], that are predicted; with `shifted` the first of a row never is."""
    return (labels[..., 1:] if shifted else labels).ne(IGNORED).sum()


def summed_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, *, shifted: bool, smoothing: float = 0.0, overwrite: bool = False
) -> torch.Tensor:
    """Cross entropy in nats, summed over target tokens, in fp32. `logits` are [batch, length, vocabulary], `labels`
    [batch, length]; a batch without any target gives 0 with zero gradients. `smoothing` and `overwrite` as in
    token_cross_entropy."""
    targets = shifted_targets(labels) if shifted else labels
    return token_cross_entropy(logits, targets, smoothing, overwrite=overwrite).sum()


def perplexity(loss: float) -> float:
    """exp of the mean cross entropy in nats; infinity where that does not fit a float."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


@dataclass(frozen=True)
class ModelLoss:
    """Computes what a micro batch contributes to the loss of an optimizer step. `rows` of a batch are one sample;
    `window` is what goes into the next log line, beside the loss."""

    kind: Kind
    shifted: bool
    smoothing: float = 0.0
    rows: ClassVar[int] = 1
    window: ClassVar[torch.Tensor | None] = None

    @classmethod
    def of(cls, model: Any, smoothing: float = 0.0) -> ModelLoss:
        """The loss of `model`, which is not wrapped by an engine or by adapters. A model that calls transformers' loss
        function, which turns all logits into fp32, calls dsrun's from then on, label smoothing included."""
        kind = kind_of_loss(model)
        if kind in ("shared", "routed") and not is_liger(model) and calls_causal_lm_loss(model):
            # Router losses, and code that came with a model, may do anything with the logits.
            overwrite = kind == "shared" and is_stock(model)
            model.loss_function = partial(causal_lm_loss, smoothing=smoothing, overwrite=overwrite)
            smoothing = 0.0
        return cls(kind, shifts_labels(model), smoothing)

    def items(self, labels: torch.Tensor) -> torch.Tensor:
        """What the loss is a mean over: the number of target tokens."""
        return target_tokens(labels, shifted=self.shifted)

    def __call__(self, model: Any, inputs: dict[str, Any], items: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The loss, a scalar, and the model's outputs; `items` are the target tokens of the whole global batch. The
        backward pass overwrites the outputs' logits.

        All terms of a model's loss, those of its routers too, count by this micro batch's share of the target tokens:
        added once for each micro batch, they would grow with the accumulation steps and the number of ranks.
        """
        labels = inputs["labels"]
        if self.kind == "shared" and not self.smoothing:
            outputs = model(**inputs, num_items_in_batch=items)
            return outputs["loss"], outputs
        if self.kind == "own":
            outputs = model(**inputs)
            return self.weighed(outputs, labels) / items, outputs
        if self.kind == "routed":
            mine = target_tokens(labels, shifted=self.shifted)
            outputs = model(**inputs, num_items_in_batch=mine.clamp(min=1))
            return outputs["loss"] * (mine / items), outputs
        outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
        total = summed_cross_entropy(
            outputs["logits"], labels, shifted=self.shifted, smoothing=self.smoothing, overwrite=True
        )
        return total / items, outputs

    @torch.no_grad()
    def sums(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """For evaluation: a batch's summed cross entropy, its loss times its target tokens, and their number, as one
        tensor [3]. The loss is the cross entropy unless the model computes one of its own."""
        labels, own = inputs["labels"], self.kind == "own"
        outputs = model(**{name: value for name, value in inputs.items() if own or name != "labels"})
        entropy = summed_cross_entropy(outputs["logits"], labels, shifted=self.shifted)
        loss = self.weighed(outputs, labels) if own else entropy
        return torch.stack([entropy, loss.to(entropy), self.items(labels).to(entropy)]).double()

    def metrics(self, sums: torch.Tensor) -> dict[str, float]:
        """What the `sums` of all batches on all ranks, added up, say."""
        entropy, loss = (sums[:2] / sums[2].clamp(min=1)).tolist()
        return {"loss": loss, "perplexity": perplexity(entropy)}

    def logged(self, window: torch.Tensor) -> dict[str, float]:
        """What goes into the log line beside the loss."""
        return {}

    def weighed(self, outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        """The loss that a model has computed by itself, times the micro batch's target tokens."""
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs[0]
        mine = target_tokens(labels, shifted=self.shifted)
        if mine == 0:
            # A mean over no tokens is NaN; the gradients of a batch of filler are zeros.
            logits = outputs["logits"] if isinstance(outputs, dict) else outputs[1]
            return logits.float().sum() * 0
        return loss * mine
