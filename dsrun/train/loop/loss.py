"""One loss, whatever the cluster's shape: the sum over target tokens divided by the target tokens of the global batch.

The stock Trainer (transformers 5.23) believes that every model whose forward takes **kwargs normalises by
`num_items_in_batch`. Encoder-decoders take **kwargs and use a plain mean all the same, so their loss and gradients come
out too large by world size × accumulation steps. Here the loss is computed from the logits unless the model is known to
hand `num_items_in_batch` to transformers' own loss function.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional as F
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from dsrun.train.batching.batches import IGNORED


def loss_is_native(model: Any) -> bool:
    """Whether the model's forward hands its keyword arguments to transformers' loss function.

    Those models stay in charge of their loss, which keeps fused kernels (Liger) and router losses of mixtures of
    experts working.
    """
    if model.config.is_encoder_decoder:
        return False
    if "liger_kernel" in (getattr(model.forward, "__module__", None) or ""):
        return True
    source = inspect.getsource(type(model).forward)
    return "self.loss_function(" in source and "**kwargs" in source


def shifts_labels(model: Any) -> bool:
    """Whether label i is the target of position i - 1 (causal LM) and not of position i (encoder-decoder)."""
    return not model.config.is_encoder_decoder


def target_tokens(labels: torch.Tensor, *, shifted: bool) -> torch.Tensor:
    """The number of labels, [batch, length], that are predicted; with `shifted` the first of a row never is."""
    return (labels[..., 1:] if shifted else labels).ne(IGNORED).sum()


def summed_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, *, shifted: bool, smoothing: float = 0.0
) -> torch.Tensor:
    """Cross entropy in nats, summed over target tokens, in fp32.

    `logits` are [batch, length, vocabulary], `labels` [batch, length] with IGNORED where nothing is predicted; a batch
    without any target gives 0 with zero gradients. `smoothing` is label smoothing as in Szegedy et al. 2016.
    """
    if shifted:
        logits, labels = logits[..., :-1, :], labels[..., 1:]
    return F.cross_entropy(
        logits.reshape(-1, logits.size(-1)).float(),
        labels.reshape(-1).to(logits.device),
        ignore_index=IGNORED,
        reduction="sum",
        label_smoothing=smoothing,
    )


class LossState(TrainerCallback, ExportableState):
    """Keeps in the checkpoint what the Trainer's log lines are made of.

    The stock loop begins a new sum of losses at a resume, so the first line after it would be the mean of other steps
    than that of a run that was never interrupted.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._noted: dict[str, Any] = {}

    def note(self) -> None:
        """Called on all ranks before a checkpoint is written."""
        trainer = self.trainer
        total = trainer._tr_loss.detach().clone()
        totals = [torch.empty_like(total) for _ in range(trainer.split.world_size)]
        if trainer.split.world_size > 1:
            dist.all_gather(totals, total)
        else:
            totals = [total]
        self._noted = {
            # float32 values are floats of Python exactly.
            "losses": [float(each) for each in totals],
            "logged": trainer._globalstep_last_logged,
            "tokens": trainer.tokens_seen,
        }

    def state(self) -> dict[str, Any]:
        """What the checkpoint holds."""
        return {"args": {}, "attributes": {"noted": self._noted}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        stored = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        noted = stored["attributes"]["noted"]
        if not noted:
            return
        trainer, losses = self.trainer, noted["losses"]
        # Every rank's sum is its share times the number of ranks; of another number only their mean can be kept.
        same = len(losses) == trainer.split.world_size
        mine = losses[trainer.split.rank] if same else sum(losses) / len(losses)
        trainer._tr_loss.fill_(mine)
        trainer._globalstep_last_logged = noted["logged"]
        trainer.count_tokens(noted["tokens"])
