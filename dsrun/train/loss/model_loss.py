"""The loss of a micro batch: its share of the global batch's mean over target tokens."""

import inspect
import math
import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, Self

import numpy as np
import torch
from transformers.loss.loss_utils import ForCausalLMLoss

from dsrun.train.base.labels import IGNORED, shifted_targets, shifts_labels, target_tokens
from dsrun.train.base.plan import LoadedPlugin
from dsrun.train.base.refusals import notice_of
from dsrun.train.loss.cross_entropy import causal_lm_loss, token_cross_entropy
from dsrun.train.loss.protocol import Loss, PreferenceInputs

LossKind = Literal["shared", "routed", "own", "logits"]
"""Where a model's loss comes from: `shared`, the loss function that transformers' models share; `routed`, the same with
the router losses of a mixture of experts added; `own`, code of the model that makes something else of it; `logits`,
cross entropy of the logits, which is also what the other models of transformers compute."""

# What models add to the cross entropy: load balancing and z-losses (Fedus et al. 2021; Zoph et al. 2022).
_ADDED = re.compile(r"loss *\+= .*loss|loss = .*loss \+ .*loss|loss = .*\+ .*_loss\b")


def kind_of_loss(model: Any) -> LossKind:
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
    return notice_of("model.own_loss", kind=name) + (idle and f"; {idle}")


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


class ModelLoss(Loss):
    """Cross entropy, or what the model computes in its place, as a mean over target tokens."""

    def __init__(self, kind: LossKind, shifted: bool, smoothing: float = 0.0) -> None:
        self.kind = kind
        self.shifted = shifted
        self.smoothing = smoothing
        if kind == "own":
            self.no_logits = "the model computes a loss of its own"

    @classmethod
    def of(cls, model: Any, smoothing: float = 0.0) -> Self:
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
        return target_tokens(labels, shifted=self.shifted)

    def __call__(self, model: Any, inputs: PreferenceInputs, items: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """All terms of a model's loss, those of its routers too, count by this micro batch's share of the target
        tokens: added once for each micro batch, they would grow with the accumulation steps and the ranks."""
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
        logits, shifted = outputs["logits"], self.shifted
        total = summed_cross_entropy(logits, labels, shifted=shifted, smoothing=self.smoothing, overwrite=True)
        return total / items, outputs

    @torch.no_grad()
    def sums(self, model: Any, inputs: PreferenceInputs) -> torch.Tensor:
        """Summed cross entropy, loss times target tokens, and their number [3]."""
        labels, own = inputs["labels"], self.kind == "own"
        outputs = model(**{name: value for name, value in inputs.items() if own or name != "labels"})
        entropy = summed_cross_entropy(outputs["logits"], labels, shifted=self.shifted)
        loss = self.weighed(outputs, labels) if own else entropy
        return torch.stack([entropy, loss.to(entropy), self.items(labels).to(entropy)]).double()

    def metrics(self, sums: torch.Tensor) -> dict[str, float]:
        entropy, loss = (sums[:2] / sums[2].clamp(min=1)).tolist()
        return {"loss": loss, "perplexity": perplexity(entropy)}

    def weighed(self, outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        """The loss that a model has computed by itself, times the micro batch's target tokens."""
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs[0]
        mine = target_tokens(labels, shifted=self.shifted)
        if mine == 0:
            # A mean over no tokens is NaN; the gradients of a batch of filler are zeros.
            logits = outputs["logits"] if isinstance(outputs, dict) else outputs[1]
            return logits.float().sum() * 0
        return loss * mine


class LossBySet(ModelLoss):
    """A model's loss, and for the log line its cross entropy over the samples of each set, without label smoothing and
    router losses. `names` are the sets, whose samples end before sample ends[i]. Without `ids` nothing is counted."""

    window: torch.Tensor

    def __init__(self, loss: ModelLoss, names: Sequence[str], ends: Sequence[int]) -> None:
        super().__init__(loss.kind, loss.shifted, loss.smoothing)
        self.names = tuple(names)
        self.ends = np.asarray(ends)
        # For each set the summed cross entropy in nats, and the target tokens.
        self.window = torch.zeros(len(self.names), 2, dtype=torch.float64)

    def __call__(self, model: Any, inputs: PreferenceInputs, items: torch.Tensor) -> tuple[torch.Tensor, Any]:
        loss, outputs = super().__call__(model, inputs, items)
        if len(self.ids):
            self._count(outputs["logits"].detach(), inputs["labels"])
        return loss, outputs

    def logged(self, window: torch.Tensor) -> dict[str, float]:
        """The mean loss of each set that there were samples of."""
        entropy, tokens = window.unbind(1)
        means = (entropy / tokens.clamp(min=1)).tolist()
        of_sets = zip(self.names, means, tokens.tolist(), strict=True)
        return {f"loss/{name}": mean for name, mean, some in of_sets if some}

    @torch.no_grad()
    def _count(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        labels = labels.to(logits.device)
        shift = int(self.shifted)
        targets = [labels[row, start + shift : stop] for row, start, stop in self.spans]
        read = [logits[row, start : stop - shift] for row, start, stop in self.spans]
        sums = [token_cross_entropy(*each).double().sum() for each in zip(read, targets, strict=True)]
        entropy = torch.stack(sums)
        tokens = torch.stack([each.ne(IGNORED).sum() for each in targets])
        # A step with such a loss is left out, or ends the run.
        counts = entropy.isfinite()
        found = torch.stack([entropy, tokens.double()], 1).where(counts[:, None], 0.0)
        sets = torch.as_tensor(np.searchsorted(self.ends, self.ids, side="right"), device=logits.device)
        self.window = self.window.to(logits.device).index_add(0, sets, found)


class PluginLoss(Loss):
    """What the `loss` of a plugin computes: a sum, divided here by the tokens or samples of the global batch."""

    kind = "plugin"
    no_logits = "the plugin computes the loss"

    def __init__(self, plugin: LoadedPlugin, model: Any) -> None:
        self.plugin = plugin
        self.shifted = shifts_labels(model)

    def items(self, labels: torch.Tensor) -> torch.Tensor:
        """The number of target tokens, or of rows with any."""
        learned = self.targets(labels).ne(IGNORED)
        return (learned if self.plugin.plugin.mean_over == "tokens" else learned.any(1)).sum()

    def targets(self, labels: torch.Tensor) -> torch.Tensor:
        """What the logits are to predict at each position, [rows, length]."""
        return shifted_targets(labels) if self.shifted else labels

    def __call__(self, model: Any, inputs: PreferenceInputs, items: torch.Tensor) -> tuple[torch.Tensor, Any]:
        total, outputs = self._total(model, inputs)
        return total / items, outputs

    @torch.no_grad()
    def sums(self, model: Any, inputs: PreferenceInputs) -> torch.Tensor:
        """Summed cross entropy and its target tokens, the plugin's loss and its items [4]."""
        total, outputs = self._total(model, inputs)
        targets = self.targets(inputs["labels"])
        entropy = summed_cross_entropy(outputs["logits"], targets, shifted=False)
        counts = targets.ne(IGNORED).sum(), self.items(inputs["labels"])
        return torch.stack([each.to(entropy) for each in (entropy, counts[0], total, counts[1])]).double()

    def metrics(self, sums: torch.Tensor) -> dict[str, float]:
        entropy, loss = (sums[::2] / sums[1::2].clamp(min=1)).tolist()
        return {"loss": loss, "perplexity": perplexity(entropy)}

    def _total(self, model: Any, inputs: PreferenceInputs) -> tuple[torch.Tensor, Any]:
        """The plugin's sum over a batch, and the outputs of its first forward pass."""
        outputs: list[Any] = []
        hook = model.register_forward_hook(lambda _model, _inputs, found: outputs.append(found))
        try:
            with self.plugin.blamed("loss"):
                read = {name: value for name, value in inputs.items() if name != "labels"}
                total = self.plugin.plugin.loss(model, read, self.targets(inputs["labels"]))
        finally:
            hook.remove()
        if not isinstance(total, torch.Tensor) or total.dim() or not total.is_floating_point():
            self.plugin.refuse("loss", total, "the sum over the batch, a scalar tensor")
        if not outputs or (torch.is_grad_enabled() and not total.requires_grad):
            self.plugin.refuse("loss", total, "a sum that depends on what model(**inputs) gives, also without targets")
        return total, outputs[0]
