"""What the Trainer, evaluation and checkpoints ask of a loss, whatever it is computed from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

PreferenceInputs = dict[str, Any]
STATE_FILE = "reference.safetensors"
"""In a checkpoint, if a loss has anything to keep: the weights of a reference that has moved."""


class Loss(Protocol):
    """Computes what a micro batch contributes to the loss of an optimizer step: a mean over all items of the global
    batch, target tokens or samples or pairs, so that neither micro batches nor ranks change it."""

    kind: str
    """Where it comes from: see `model_loss.LossKind`; "plugin" for one of the user's."""
    shifted: bool
    """Whether label i is the target of position i - 1 (causal LM)."""
    rows: int = 1
    """Rows of a batch that are one sample."""
    window: torch.Tensor | None = None
    """What goes into the next log line beside the loss, summed since the last one."""
    no_logits: str | None = None
    """Why the loss of each set of a mixture cannot be told from the logits of a micro batch; None where it can."""
    ids: Sequence[int] = ()
    """The samples of the micro batch to be computed."""
    spans: Sequence[tuple[int, int, int]] = ()
    """Where their labels are: row, first position, and the one behind the last."""

    def items(self, labels: torch.Tensor) -> torch.Tensor:
        """What the loss is a mean over, counted in the labels of a micro batch; of several terms, one for each."""
        ...

    def __call__(self, model: Any, inputs: PreferenceInputs, items: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The loss, a scalar, and the model's outputs, whose logits the backward pass may overwrite; `items` are those
        of the whole global batch."""
        ...

    def sums(self, model: Any, inputs: PreferenceInputs) -> torch.Tensor:
        """For evaluation: sums over a batch, fp64, which are added up over batches and ranks."""
        ...

    def metrics(self, sums: torch.Tensor) -> dict[str, float]:
        """What the `sums` of all batches on all ranks, added up, say."""
        ...

    def logged(self, window: torch.Tensor) -> dict[str, float]:
        """What goes into the log line beside the loss, from the `window` of all ranks, added up."""
        return {}

    def tensors(self) -> dict[str, torch.Tensor]:
        """On rank 0, what a checkpoint has to keep of it, in STATE_FILE. A collective."""
        return {}

    def restore(self, checkpoint: Path) -> None:
        """Take what a checkpoint has kept. A collective."""
        return
