"""The loss of a plugin: summed by the user's code, divided here by the tokens or samples of the global batch."""

from typing import Any

import torch

from dsrun.train.base.labels import IGNORED, shifted_targets, shifts_labels
from dsrun.train.base.plugin import LoadedPlugin
from dsrun.train.loss.model_loss import perplexity, summed_cross_entropy
from dsrun.train.loss.protocol import Loss, PreferenceInputs


class PluginLoss(Loss):
    """What the `loss` of a plugin computes."""

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
