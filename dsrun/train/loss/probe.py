"""What a few tokens tell about a model before its first step: whether it sees what it is to predict, and which of its
parameters get no gradient."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dsrun.train.base.refusals import refusal
from dsrun.train.model.load import evaluating

TOKENS = 8
# Of the largest logit: a kernel may round two rows of a batch differently; what a token changes is far more.
TOLERANCE = 1e-3
# Far more than bf16 rounds off, and far less than a mean is off.
SUM_TOLERANCE = 0.1


def tokens(model: Any, device: torch.device, length: int = TOKENS) -> torch.Tensor:
    """Token ids, int64 [1, length]."""
    # From 2 on, as many vocabularies begin with padding and an end.
    vocabulary = model.config.get_text_config().vocab_size
    return (torch.arange(2, 2 + length, device=device) % vocabulary).unsqueeze(0)


@torch.no_grad()
def change_by_later_tokens(
    call: Callable[[torch.Tensor], torch.Tensor], ids: torch.Tensor, later: Sequence[int]
) -> float:
    """The largest change of a logit by a token that follows, as a share of the largest logit. The tokens at the
    positions `later` are changed, one in a row. `call` gives logits [rows, length, vocabulary] of ids of rows."""
    rows = ids.repeat(1 + len(later), 1)
    for row, position in enumerate(later, 1):
        rows[row, position] = ids[0, position - 1]
    logits = call(rows).float()
    changes = [(logits[row, :position] - logits[0, :position]).abs().max() for row, position in enumerate(later, 1)]
    return float(torch.stack(changes).max() / logits.abs().max().clamp(min=1e-30))


def check_causality(trainer: Any) -> None:
    """Refuse a causal model of which a later token changes an earlier prediction: it learns to copy what it is to
    predict, and its loss falls while it learns nothing. Called on all ranks, as ZeRO-3 gathers parameters."""
    ids = tokens(trainer.model, trainer.args.device)
    with evaluating(trainer.model), trainer.compute_loss_context_manager():
        change = change_by_later_tokens(lambda rows: trainer.model_wrapped(input_ids=rows)["logits"], ids, [-1])
    if change > TOLERANCE:
        name = type(trainer.model).__name__
        raise refusal("loss.not_causal", name=name, token=TOKENS, percent=100 * change)


@torch.no_grad()
def check_sum(trainer: Any) -> None:
    """Refuse a plugin's loss that is not a sum: two equal rows give twice the loss of one. Called on all ranks."""
    with evaluating(trainer.model), trainer.compute_loss_context_manager():
        batches = (_batch(trainer, rows) for rows in (1, 2))
        losses = [trainer.loss_of_model(trainer.model_wrapped, each, torch.tensor(1))[0] for each in batches]
    one, two = map(float, losses)
    if abs(two - 2 * one) > SUM_TOLERANCE * abs(two):
        raise refusal("loss.no_sum", plugin=trainer.plugin.file.named, one=one, two=two)


def _batch(trainer: Any, rows: int) -> dict[str, Any]:
    """A batch of equal samples, as the collator makes it."""
    ids = tokens(trainer.model, torch.device("cpu"))[0].tolist()
    row = {"input_ids": ids, "labels": ids, "rejected_ids": ids, "rejected_labels": ids}
    return trainer._prepare_inputs(trainer.data_collator([row] * rows))


def parameters_without_gradient(trainer: Any) -> list[str]:
    """Names of the trained parameters that the loss of a few tokens gives no gradient. The model is whole on this rank
    and not wrapped yet."""
    model = trainer.model
    inputs = _batch(trainer, 1)
    # No dropout, so that the random numbers of training stay as they are.
    with evaluating(model), trainer.compute_loss_context_manager():
        loss, _ = trainer.loss_of_model(model, inputs, trainer.loss_of_model.items(inputs["labels"]))
    loss.backward()
    found = [name for name, each in model.named_parameters() if each.requires_grad and each.grad is None]
    model.zero_grad(set_to_none=True)
    return found


def is_conditional(config: Any) -> bool:
    """Whether a model leaves parts of itself out of some batches: experts without a token, or layers by LayerDrop (Fan
    et al. 2019)."""
    found = config.get_text_config().to_dict() | config.to_dict()
    drops = any(found.get(name) for name in ("layerdrop", "encoder_layerdrop", "decoder_layerdrop"))
    return drops or any(found.get(name) for name in ("num_experts", "num_local_experts", "n_routed_experts"))
