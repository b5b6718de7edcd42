"""Labels: what of a row is learned, and which position predicts which label."""

from typing import Any

import torch
from torch.nn import functional as F

# torch's cross_entropy and the models of transformers leave out this target (`ignore_index`).
IGNORED = -100


def shifts_labels(model: Any) -> bool:
    """Whether label i is the target of position i - 1 (causal LM) and not of position i (encoder-decoder)."""
    return not model.config.is_encoder_decoder


def shifted_targets(labels: torch.Tensor) -> torch.Tensor:
    """What each position of a causal LM is to predict, of the shape of `labels`: the next label, nothing at the end.
    Cutting the last position off the logits instead would copy them."""
    return F.pad(labels[..., 1:], (0, 1), value=IGNORED)


def target_tokens(labels: torch.Tensor, *, shifted: bool) -> torch.Tensor:
    """The number of labels, [batch, length], that are predicted; with `shifted` the first of a row never is."""
    return (labels[..., 1:] if shifted else labels).ne(IGNORED).sum()
