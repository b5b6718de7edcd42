"""Rows of token ids as the padded tensors of a batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dsrun.train.base.labels import IGNORED


@dataclass
class PaddingCollator:
    """Pads rows {"input_ids", "labels"} on the right; other keys are left out.

    Gives int64 tensors: input_ids [batch, source], attention_mask likewise, labels [batch, target] with -100 where
    there is padding. Padding is marked by position and never by id, so a tokenizer whose padding is its end token still
    learns to end.

    For seq2seq set `model` after it is built: decoder_input_ids [batch, target] then come from the labels.

    `length` and `target_length` pad to a fixed size (--pad-to-max-length); otherwise to the longest of the batch,
    rounded up to `multiple_of` (8 fills the tensor cores of a GPU; on a CPU it would be waste). `max_target_length`
    bounds generation in evaluation. `adjust` (batch, rows) returns the batch to use instead."""

    pad_id: int
    seq2seq: bool
    multiple_of: int = 1
    length: int | None = None
    target_length: int | None = None
    max_target_length: int | None = None
    model: Any = None
    adjust: Callable[[dict[str, Any], Sequence[dict[str, Any]]], dict[str, Any]] | None = None

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        inputs, labels = ([np.asarray(row[name], dtype=np.int64) for row in rows] for name in ("input_ids", "labels"))
        width = self.width(max(map(len, inputs)), self.length)
        target_width = self.width(max(map(len, labels)), self.target_length) if self.seq2seq else width
        batch = {
            "input_ids": _padded(inputs, width, self.pad_id),
            "attention_mask": _padded([np.ones_like(ids) for ids in inputs], width, 0),
            "labels": _padded(labels, target_width, IGNORED),
        }
        if self.seq2seq and self.model is not None:
            batch["decoder_input_ids"] = self.decoder_input_ids(batch["labels"])
        return self.adjust(batch, rows) if self.adjust else batch

    def decoder_input_ids(self, labels: torch.Tensor) -> torch.Tensor:
        """What the decoder reads to write `labels`: [batch, target] both. M2M100 (NLLB) and Blenderbot have no method
        for it (transformers 5.23): their forward shifts labels itself, but the loss is not left to their forward."""
        # FSMT's shift_tokens_right writes into labels (modeling_fsmt.py of transformers 5.23): its padding would be
        # learned. All rows have a token: mBART's indexes with -1 where all are ignored, as in filler rows.
        labels = labels.clone()
        labels[(labels == IGNORED).all(dim=1), 0] = 0 if self.pad_id != 0 else 1
        if hasattr(self.model, "prepare_decoder_input_ids_from_labels"):
            return self.model.prepare_decoder_input_ids_from_labels(labels=labels)
        start = labels.new_full((len(labels), 1), self.model.config.decoder_start_token_id)
        return torch.cat([start, labels[:, :-1].masked_fill(labels[:, :-1] == IGNORED, self.pad_id)], dim=1)

    def width(self, longest: int, fixed: int | None) -> int:
        """Cells of each row in a batch whose longest row has so many tokens."""
        if fixed is not None:
            return max(fixed, longest)
        return -(-longest // self.multiple_of) * self.multiple_of


def _padded(arrays: Sequence[np.ndarray], width: int, fill: int) -> torch.Tensor:
    out = np.full((len(arrays), width), fill, dtype=np.int64)
    for row, array in zip(out, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(out)
